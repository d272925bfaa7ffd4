"""Factories for tests of WhatsApp's mirror: accounts, numbers and templates in the database."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

from heliograph.base.actor import Actor
from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.whatsapp.mirror import accounts
from heliograph.whatsapp.mirror.accounts import BusinessAccount

KEY = derive_key("a secret key that only the tests ever use", "whatsapp")
APP, SECRET, VERIFY = "660000000000001", "app secret", "verify me"
WABA, GRAPH_ID = "900100200300400", "555000111222333"
TOKEN = "EAAtoken"
BODY = [{"type": "BODY", "text": "Bonjour {{1}}, livraison {{2}}."}]


async def account(pool: Pool, actor: Actor, **values: Any) -> BusinessAccount:
    """An account of the organization; nothing has been read of it yet."""
    async with pool.acquire() as conn:
        return await accounts.add(
            conn,
            KEY,
            organization_id=actor.organization_id,
            **{
                "app_id": APP,
                "app_secret": SECRET,
                "verify_token": VERIFY,
                "waba_id": WABA,
                "token": TOKEN,
                "currency": "EUR",
                **values,
            },
        )


async def number(pool: Pool, account: BusinessAccount, graph_id: str = GRAPH_ID, **values: Any) -> UUID:
    """A number of the account, connected and green unless `values` say otherwise."""
    id = uuid7()
    row = {
        "organization_id": account.organization_id,
        "id": id,
        "account_id": account.id,
        "graph_id": graph_id,
        "display_phone_number": "+212 520-001234",
        "digits": "212520001234",
        "verified_name": "Boutique Amal",
        "connection_status": "connected",
        "quality_rating": "green",
        "messaging_tier": "tier_2k",
        "messaging_limit": 2000,
        **values,
    }
    await _insert(pool, "whatsapp_numbers", row, "created_at, changed_at")
    return id


async def template(pool: Pool, account: BusinessAccount, name: str = "order_shipped", **values: Any) -> UUID:
    """A template of the account: approved, for utility, in French, with two parameters."""
    id = uuid7()
    row = {
        "organization_id": account.organization_id,
        "id": id,
        "account_id": account.id,
        "graph_id": str(1_200_000_000_000_000 + id.int % 1_000_000_007),
        "name": name,
        "language": "fr",
        "category": "utility",
        "status": "approved",
        "parameter_count": 2,
        "components": json.dumps(BODY),
        "body_preview": BODY[0]["text"],
        **values,
    }
    await _insert(pool, "whatsapp_templates", row, "created_at, updated_at")
    return id


async def _insert(pool: Pool, table: str, row: dict[str, Any], times: str) -> None:
    names = ", ".join(row)
    places = ", ".join(f"${at}" for at in range(1, len(row) + 1))
    await pool.execute(
        f"INSERT INTO {table} ({names}, {times}) VALUES ({places}, now(), now())",
        *row.values(),
    )


async def events_of(pool: Pool, actor: Actor) -> list[tuple[str, dict[str, Any]]]:
    """Kind and data of the organization's events, in order."""
    rows = await pool.fetch(
        "SELECT kind, data FROM events WHERE organization_id = $1 ORDER BY id", actor.organization_id
    )
    return [(row["kind"], json.loads(row["data"])) for row in rows]


async def ago(pool: Pool, account: BusinessAccount, column: str, age: timedelta) -> None:
    """Set a time of the account to `age` ago."""
    await pool.execute(
        f"UPDATE whatsapp_accounts SET {column} = now() - $3::interval WHERE organization_id = $1 AND id = $2",
        account.organization_id,
        account.id,
        age,
    )
