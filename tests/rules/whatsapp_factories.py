"""Factories for tests of WhatsApp: organizations with wallet, rates, account, number and templates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.crypto import derive_key, seal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.campaigns.channels import whatsapp as whatsapp_channel
from heliograph.campaigns.channels.whatsapp import WhatsAppCampaignSpec
from heliograph.campaigns.filling import Filling
from heliograph.whatsapp.messages import QUEUED
from tests.rules import factories
from tests.rules.factories import TO

#: The key that seals app secrets and account tokens: `accounts.seal_key` of settings with this secret key.
SECRET_KEY = "a secret key for tests of WhatsApp only, long"
KEY = derive_key(SECRET_KEY, "whatsapp")
APP_SECRET = "0123456789abcdef0123456789abcdef"
VERIFY_TOKEN = "verify-me"
TOKEN = "a system user's token"

#: One unit of currency, in millionths.
UNIT = 1_000_000
#: List prices of the rates made here, in millionths of EUR: everywhere, and for Mozambique (TO's country).
PRICES = {("utility", "*"): 20_000, ("utility", "MZ"): 10_000, ("authentication", "*"): 30_000}

#: The ends of numbers made here.
_numbers = count(1)

#: Meta lets no account begin conversations for a day.
RESTRICT = """
UPDATE whatsapp_numbers SET connection_status = 'restricted';
INSERT INTO whatsapp_warnings (organization_id, account_id, kind, detail, said_at, ends_at)
SELECT organization_id, id, 'restriction', 'RESTRICTED_BIZ_INITIATED_MESSAGING', now(), now() + interval '1 day'
  FROM whatsapp_accounts
"""
BODY = [{"type": "BODY", "text": "Hello {{1}}, your order {{2}} was shipped."}]
CODE = [
    {"type": "BODY", "text": "*{{1}}* is your code."},
    {"type": "BUTTONS", "buttons": [{"type": "URL", "url": "https://www.whatsapp.com/otp/code/?code=otp{{1}}"}]},
]


class Made(msgspec.Struct, frozen=True):
    """An organization that can send: a template `order_shipped` (utility, two values) and `login_code` (a code)."""

    actor: Actor
    app: UUID
    account_id: UUID
    waba_id: str
    number_id: UUID
    graph_id: str
    digits: str
    template_id: UUID
    code_id: UUID

    @property
    def organization_id(self) -> UUID:
        return self.actor.organization_id


async def made(
    pool: Pool,
    *,
    balance: int = 100 * UNIT,
    currency: str = "EUR",
    organization_id: UUID | None = None,
    base_url: str = "http://127.0.0.1:1",
    app: UUID | None = None,
    **actor: Any,
) -> Made:
    """An organization (a new one without `organization_id`) with all that a send needs. `balance`: in millionths."""
    if organization_id is None:
        known = await factories.organization(pool, scopes=frozenset({"whatsapp:send"}), **actor)
    else:
        known = Actor(organization_id, None, "live", frozenset({"whatsapp:send"}), "active")
    await rates(pool, currency=currency)
    await wallet(pool, known.organization_id, balance, currency=currency)
    app = app or await make_app(pool)
    account_id, waba_id = await account(pool, known.organization_id, app, currency=currency, base_url=base_url)
    number_id, graph_id, digits = await number(pool, known.organization_id, account_id)
    return Made(
        actor=known,
        app=app,
        account_id=account_id,
        waba_id=waba_id,
        number_id=number_id,
        graph_id=graph_id,
        digits=digits,
        template_id=await template(pool, known.organization_id, account_id),
        code_id=await template(
            pool,
            known.organization_id,
            account_id,
            name="login_code",
            category="authentication",
            components=CODE,
            parameter_count=1,
        ),
    )


def _digits(id: UUID) -> str:
    return str(id.int)[-14:]


async def rates(pool: Pool, *, currency: str = "EUR", prices: dict[tuple[str, str], int] | None = None) -> None:
    """List prices since 2020, for each (category, country)."""
    prices = PRICES if prices is None else prices
    await pool.executemany(
        "INSERT INTO whatsapp_rates (currency, category, country, valid_from, price, created_at)"
        " VALUES ($1, $2, $3, '2020-01-01T00:00:00Z', $4, now()) ON CONFLICT DO NOTHING",
        [(currency, category, country, price) for (category, country), price in prices.items()],
    )


async def wallet(pool: Pool, organization_id: UUID, balance: int, *, currency: str = "EUR") -> None:
    """A wallet that agrees with its ledger; `balance` in millionths."""
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute(
            "INSERT INTO wallets (organization_id, currency, available, total, updated_at)"
            " VALUES ($1, $2::text, $3, $3, $4)",
            organization_id,
            currency,
            balance,
            clock.now(),
        )
        await conn.execute(
            "INSERT INTO wallet_ledger (organization_id, id, movement, available, created_at)"
            " VALUES ($1, $2, 'top_up', $3, $4)",
            organization_id,
            uuid7(),
            balance,
            clock.now(),
        )


async def make_app(pool: Pool, *, secret: str = APP_SECRET, verified: bool = True) -> UUID:
    """A Meta app, sealed under KEY."""
    id = uuid7()
    await pool.execute(
        "INSERT INTO whatsapp_apps (id, app_id, secret, verify_token, verified_at, created_at, changed_at)"
        " VALUES ($1, $2, $3, $4, $5, now(), now())",
        id,
        _digits(id),
        seal(KEY, secret.encode(), f"whatsapp_apps/{id}/secret"),
        seal(KEY, VERIFY_TOKEN.encode(), f"whatsapp_apps/{id}/verify_token"),
        datetime.now(UTC) if verified else None,
    )
    return id


async def account(
    pool: Pool,
    organization_id: UUID,
    app: UUID,
    *,
    currency: str = "EUR",
    base_url: str = "http://127.0.0.1:1",
    state: str = "active",
    credential_status: str = "ok",
) -> tuple[UUID, str]:
    """A WhatsApp Business Account; returns (id, WABA id)."""
    id = uuid7()
    waba_id = _digits(id)
    await pool.execute(
        "INSERT INTO whatsapp_accounts (organization_id, id, app, waba_id, currency, base_url, api_version, token,"
        " state, portfolio, credential_status, created_at, changed_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, 'v26.0', $7, $8, $4, $9, now(), now())",
        organization_id,
        id,
        app,
        waba_id,
        currency,
        base_url,
        seal(KEY, TOKEN.encode(), f"whatsapp_accounts/{id}/token"),
        state,
        credential_status,
    )
    return id, waba_id


async def number(
    pool: Pool,
    organization_id: UUID,
    account_id: UUID,
    *,
    connection_status: str = "connected",
    throughput_per_second: int = 80,
    messaging_limit: int | None = None,
    proven: bool = True,
) -> tuple[UUID, str, str]:
    """A sender; returns (id, Graph id, digits). `proven`: it counts as working for the next hour at least, so it need
    not start slowly."""
    id = uuid7()
    graph_id = "1" + _digits(id)
    digits = f"25885{next(_numbers):07}"  # nobody else's, and no recipient's
    await pool.execute(
        "INSERT INTO whatsapp_numbers (organization_id, id, account_id, graph_id, display_phone_number, digits,"
        " verified_name, connection_status, quality_rating, messaging_tier, messaging_limit, throughput_per_second,"
        " last_sent_at, created_at, changed_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, 'Acme', $7, 'green', 'tier_2k', $8, $9,"
        " CASE WHEN $10 THEN now() + interval '1 hour' END, now(), now())",
        organization_id,
        id,
        account_id,
        graph_id,
        "+" + digits,
        digits,
        connection_status,
        messaging_limit,
        throughput_per_second,
        proven,
    )
    return id, graph_id, digits


async def template(
    pool: Pool,
    organization_id: UUID,
    account_id: UUID,
    *,
    name: str = "order_shipped",
    language: str = "en",
    category: str = "utility",
    status: str = "approved",
    components: list[dict[str, Any]] | None = None,
    parameter_format: str = "POSITIONAL",
    parameter_count: int = 2,
    ttl_seconds: int | None = None,
    disabled_locally: bool = False,
) -> UUID:
    """A template as the mirror stores it."""
    id = uuid7()
    components = BODY if components is None else components
    await pool.execute(
        "INSERT INTO whatsapp_templates (organization_id, id, account_id, graph_id, name, language, category, status,"
        " parameter_format, parameter_count, components, body_preview, ttl_seconds, disabled_locally, created_at,"
        " updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, now(), now())",
        organization_id,
        id,
        account_id,
        "2" + _digits(id),
        name,
        language,
        category,
        status,
        parameter_format,
        parameter_count,
        msgspec.json.encode(components).decode(),
        next((one["text"] for one in components if one["type"] == "BODY"), ""),
        ttl_seconds,
        disabled_locally,
    )
    return id


async def conversation(
    pool: Pool,
    made: Made,
    *,
    to: str = TO,
    opened: timedelta | None = timedelta(0),
    free: timedelta | None = None,
    mode: str = "live",
) -> UUID:
    """A conversation with `to`; `opened`: how long ago the user wrote, None: never. `free`: for how long messages are
    free."""
    id = uuid7()
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute(
            "INSERT INTO whatsapp_conversations (organization_id, id, number_id, recipient, opened_at, expires_at,"
            " last_inbound_at, free_until, created_at, mode)"
            " VALUES ($1, $2, $3, $4, now() - $5::interval, now() - $5::interval + interval '1 day',"
            " now() - $5::interval, now() + $6::interval, now(), $7::text)",
            made.organization_id,
            id,
            made.number_id,
            to,
            opened,
            free,
            mode,
        )
        await conn.execute(
            "INSERT INTO whatsapp_aliases (organization_id, number_id, alias, conversation_id) VALUES ($1, $2, $3, $4)",
            made.organization_id,
            made.number_id,
            to.removeprefix("+") if mode == "live" else f"test:{to}",
            id,
        )
    return id


async def message(
    pool: Pool,
    made: Made,
    *,
    to: str = TO,
    status: str = "accepted",
    type: str = "template",
    category: str | None = None,
    template_id: UUID | None = None,
    parameters: tuple[str, ...] = ("Ana", "7"),
    text: str = "hello",
    mode: str = "live",
    price: int = 10_000,
    line: UUID | None = None,
    lane: int = 0,
    age: timedelta = timedelta(0),
    deadline: timedelta = timedelta(days=31),
    queued: bool = True,
    conversation_id: UUID | None = None,
) -> UUID:
    """Store an outbound message that is `age` old, with its content, reservation and queue row; returns its id. With
    the status `queued`, its row says `accepted`."""
    id = uuid7()
    status = "accepted" if status == QUEUED else status
    if conversation_id is None:
        conversation_id = await pool.fetchval(
            "SELECT conversation_id FROM whatsapp_aliases WHERE organization_id = $1 AND number_id = $2 AND alias = $3",
            made.organization_id,
            made.number_id,
            to.removeprefix("+") if mode == "live" else f"test:{to}",
        ) or await conversation(pool, made, to=to, opened=None, mode=mode)
    if type == "template":
        template_id = template_id or made.template_id
        category = category or "utility"
        content = msgspec.json.encode({"type": "template", "parameters": parameters}).decode()
    else:
        template_id, category = None, "service"
        content = msgspec.json.encode({"type": "text", "body": text, "previewUrl": False}).decode()
    price = price if mode == "live" else 0
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute(
            "INSERT INTO whatsapp_messages (organization_id, id, direction, type, mode, status, number_id,"
            " conversation_id, recipient, template_id, template_name, template_language, billing_category, request_id,"
            " accepted_at, deadline_at, charge, reserved, country, content)"
            " SELECT $1, $2, 'outbound', $3, $4::text, $5::text, $6, $7, $8, $9, t.name, t.language, $10, 'req',"
            " now() - $11::interval, now() - $11::interval + $12::interval, $13::text, $14::bigint, 'MZ', $15"
            " FROM (SELECT) one LEFT JOIN whatsapp_templates t ON t.organization_id = $1 AND t.id = $9",
            made.organization_id,
            id,
            type,
            mode,
            status,
            made.number_id,
            conversation_id,
            to,
            template_id,
            category,
            age,
            deadline,
            "reserved" if mode == "live" else "none",
            price,
            content,
        )
        if mode == "live":
            await conn.execute(
                "INSERT INTO wallet_movements (organization_id, id, movement, message_id, available, reserved,"
                " consumed, created_at) VALUES ($1, $2, 'reserve', $2, -$3::bigint, $3, 0, now())",
                made.organization_id,
                id,
                price,
            )
            await conn.execute(
                "UPDATE wallets SET available = available - $2, reserved = reserved + $2 WHERE organization_id = $1",
                made.organization_id,
                price,
            )
        if queued:
            await conn.execute(
                "INSERT INTO queue (kind, line, lane, organization_id, due_at, id)"
                " VALUES ('whatsapp', $1, $2, $3, now(), $4)",
                line or (made.number_id if mode == "live" else UUID(int=1)),
                lane,
                made.organization_id,
                id,
            )
    return id


async def campaign(pool: Pool, made: Made, *, name: str = "Delivery day", recipients: tuple[str, ...] = (TO,)) -> UUID:
    """Create a campaign of `order_shipped` that has just begun; returns its id."""
    spec = WhatsAppCampaignSpec(
        name=name,
        number_id=made.number_id,
        template="order_shipped",
        language="en",
        parameters=(Filling(column="first_name", default="customer"), Filling(text="4471")),
        recipients=recipients,
    )
    async with pool.acquire() as conn, conn.transaction():
        return (await whatsapp_channel.create(conn, made.actor, spec=spec, request_id="req")).id


def key(name: str) -> dict[str, Any]:
    """`key_hash` and `request_hash` of a Send under the idempotency key `name`; its payload is always the same."""
    return {"key_hash": factories.key(name), "request_hash": hashlib.sha256(name.encode()).digest()}


async def check_wallets(pool: Pool, organizations: Iterable[UUID]) -> None:
    """total = available + reserved + consumed; the ledger's sums are the wallet's, and so are the messages'."""
    for id in organizations:
        known = await pool.fetchrow(
            "SELECT available, reserved, consumed, total FROM wallets WHERE organization_id = $1", id
        )
        booked = await pool.fetchrow(
            "SELECT coalesce(sum(available), 0) AS available, coalesce(sum(reserved), 0) AS reserved,"
            "       coalesce(sum(consumed), 0) AS consumed,"
            "       coalesce(sum(available + reserved + consumed), 0) AS total"
            "  FROM wallet_entries WHERE organization_id = $1",
            id,
        )
        held = await pool.fetchrow(
            "SELECT coalesce(sum(reserved), 0) AS reserved, coalesce(sum(consumed), 0) AS consumed"
            "  FROM whatsapp_messages WHERE organization_id = $1",
            id,
        )
        assert dict(known) == {name: int(value) for name, value in dict(booked).items()}
        assert known["total"] == known["available"] + known["reserved"] + known["consumed"]
        assert (known["reserved"], known["consumed"]) == (int(held["reserved"]), int(held["consumed"]))
        days = await pool.fetchrow(
            "SELECT coalesce(sum(consumed), 0)::bigint AS consumed, coalesce(sum(messages), 0)::bigint AS messages,"
            " (SELECT count(*) FROM wallet_movements WHERE organization_id = $1 AND movement = 'consume') AS charged"
            "  FROM wallet_days WHERE organization_id = $1",
            id,
        )
        assert (days["consumed"], days["messages"]) == (known["consumed"], days["charged"])
        again = await pool.fetchval(
            "SELECT count(*) FROM (SELECT FROM wallet_movements WHERE organization_id = $1"
            " GROUP BY message_id, movement HAVING count(*) > 1 AND movement IN ('reserve', 'consume', 'release')) two",
            id,
        )
        assert again == 0
