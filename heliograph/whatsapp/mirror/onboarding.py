"""Adding an account and changing its credential, checked with Meta first; and the listings that operators see.

The rule nobody may break: a credential that Meta does not accept is not stored, and nothing here shows a secret. The
verify token is not a secret: it is entered on Meta's page.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key, Unsealable
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.base.sentences import joined, said
from heliograph.suppliers.whatsapp_cloud.callbacks import management
from heliograph.suppliers.whatsapp_cloud.credential import Credential, credential
from heliograph.suppliers.whatsapp_cloud.graph import CloudClient, CloudError
from heliograph.whatsapp import reads
from heliograph.whatsapp.mirror import accounts, apps, sync, warnings
from heliograph.whatsapp.mirror.accounts import BusinessAccount
from heliograph.whatsapp.mirror.apps import App
from heliograph.whatsapp.mirror.sync import Changed, Reading

#: Fields of the app's webhook that must be subscribed to at Meta.
FIELDS = ("messages", "calls", *management.FIELDS)


class Connected(msgspec.Struct, frozen=True):
    """An added account, the data read from Meta, and notes for the operator."""

    account: BusinessAccount
    app: App
    reading: Reading
    changed: Changed
    notes: list[str]


async def connect(
    conn: Connection,
    key: Key,
    client: CloudClient,
    *,
    organization_id: UUID,
    app_id: str,
    app_secret: str | None,
    verify_token: str | None,
    waba_id: str,
    token: str,
    currency: str | None,
    base_url: str,
    api_version: str,
    name: str = "",
    subscribe: bool = False,
    by: Principal = SYSTEM,
) -> Connected:
    """Read an account from Meta, then add it with its numbers and templates.

    `app_secret` and `verify_token` may be None for a known app; a new app then gets a random verify token. `currency`:
    None: the one reported by Meta. `subscribe`: subscribe the app to the account's callbacks. Raises Invalid, also if
    Meta refuses something, and AccountExists. `conn` must not be in a transaction.
    """
    known = await known_app(conn, key, app_id, anew=bool(app_secret))
    if known is None and not app_secret:
        raise Invalid(("app_secret", "required", "`app_secret` is required for a new app"))
    if known is None and not verify_token:
        verify_token = secrets.token_urlsafe(24)
    app = known or App(uuid7(), app_id, ((app_secret or "").encode(),), verify_token or "", None, None)
    found = await _readable(client, waba_id, token, app)
    if subscribe:
        await _subscribe(client, waba_id, credential(token, app.secret))
        found.subscribed = True
    currency = currency or (found.account.currency if found.account is not None else None)
    if currency is None:
        raise Invalid(("currency", "required", "`currency` is required: Meta does not report the account's currency"))
    async with conn.transaction():
        account = await accounts.add(
            conn,
            key,
            organization_id=organization_id,
            app_id=app_id,
            app_secret=app_secret,
            verify_token=verify_token,
            waba_id=waba_id,
            token=token,
            currency=currency,
            base_url=base_url,
            api_version=api_version,
            name=name,
            by=by,
        )
        changed = await sync.store(conn, organization_id, account.id, found)
        stored = await accounts.get(conn, organization_id, account.id)
        app = await apps.get_app(conn, key, account.app)
    await sync.wake_others(conn, organization_id, account.id, changed)
    notes = list(sync.problems_of(found))
    if found.account is not None and found.account.currency not in (None, currency):
        notes.append(f"Meta charges this account in {found.account.currency}")
    used = await conn.fetchval(USED_IN, organization_id, stored.currency)
    if used is not None:
        notes.append(
            f"the wallet is in {used}, so none of this account's messages can be paid for:"
            f" remove the account, and add it again with --currency {used}"
        )
    return Connected(stored, app, found, changed, notes)


async def known_app(conn: Connection, key: Key, app_id: str, *, anew: bool = False) -> App | None:
    """The app by Meta's id for it. If its secret was sealed with another secret key, None if it is given `anew`;
    otherwise raises Invalid."""
    if anew:
        with contextlib.suppress(Unsealable):
            return await apps.find_app(conn, key, app_id)
        return None
    with apps.opening():
        return await apps.find_app(conn, key, app_id)


SCHEDULED = """
SELECT numbers_at, templates_at FROM whatsapp_accounts WHERE organization_id = $1 AND id = $2 FOR NO KEY UPDATE
"""
# What was due is done.
KEEP_SCHEDULED = """
UPDATE whatsapp_accounts
   SET numbers_at = least(numbers_at, CASE WHEN $3 > now() THEN $3 END),
       templates_at = least(templates_at, CASE WHEN $4 > now() THEN $4 END),
       mirror_at = least(mirror_at, CASE WHEN $3 > now() THEN $3 END, CASE WHEN $4 > now() THEN $4 END)
 WHERE organization_id = $1 AND id = $2
"""


async def change_token(
    conn: Connection, key: Key, client: CloudClient, *, account: BusinessAccount, token: str, by: Principal = SYSTEM
) -> tuple[Reading, Changed]:
    """Change an account's token, once Meta has accepted it. Raises Invalid. `conn` must not be in a transaction."""
    with apps.opening():
        app = await apps.get_app(conn, key, account.app)
    found = await _readable(client, account.waba_id, token, app)
    async with conn.transaction():
        scheduled = await conn.fetchrow(SCHEDULED, account.organization_id, account.id)
        await accounts.update(
            conn, key, organization_id=account.organization_id, account_id=account.id, token=token, by=by
        )
        # The reading was made before the change was stored, but with the new token.
        found.asked_at = max(found.asked_at, await conn.fetchval("SELECT clock_timestamp()"))
        changed = await sync.store(conn, account.organization_id, account.id, found)
        assert scheduled is not None
        # An event may have requested a reading for which this one was too early.
        await conn.execute(KEEP_SCHEDULED, account.organization_id, account.id, *scheduled)
    await sync.wake_others(conn, account.organization_id, account.id, changed)
    return found, changed


SUBSCRIBED = "UPDATE whatsapp_accounts SET subscribed = true WHERE organization_id = $1 AND id = $2"


async def subscribe(
    conn: Connection, key: Key, client: CloudClient, *, account: BusinessAccount, by: Principal = SYSTEM
) -> None:
    """Subscribe the app to the account's callbacks. Raises Invalid if Meta refuses."""
    row = await accounts.get(conn, account.organization_id, account.id)
    with apps.opening():
        app = await apps.get_app(conn, key, row.app)
        token = accounts.open_token(key, row.id, row.token)
    await _subscribe(client, row.waba_id, credential(token, app.secret))
    async with conn.transaction():
        await conn.execute(SUBSCRIBED, account.organization_id, account.id)
        await audit.record(
            conn,
            by,
            "whatsapp_account.changed",
            object_id=account.id,
            name=account.name,
            organization_id=account.organization_id,
            after={"subscribed": True},
        )


async def _subscribe(client: CloudClient, waba_id: str, shown: Credential) -> None:
    try:
        await client.subscribe(waba_id, shown)
    except CloudError as error:
        raise Invalid(
            ("subscribe", "refused", said("Meta refused to subscribe the app: %(error)s", error=str(error)))
        ) from None


async def _readable(client: CloudClient, waba_id: str, token: str, app: App) -> Reading:
    found = await sync.read(client, waba_id, token, app)
    if found.credential == "invalid":
        raise Invalid(("token", "refused", said("Meta rejects this token: %(detail)s", detail=found.credential_detail)))
    if found.numbers is None:
        problems = joined(found.problems, "; ")
        raise Invalid(("waba_id", "unreadable", said("the account cannot be read: %(problems)s", problems=problems)))
    return found


ACCOUNTS = f"""
SELECT a.id, a.waba_id, a.name, a.state, {warnings.OPEN} AS warnings,
       a.currency, a.credential_status, a.credential_detail, a.credential_expires_at,
       a.credential_checked_at, a.subscribed, a.held_until, a.held_reason, a.mirrored_at, a.mirror_at,
       a.mirror_detail, a.portfolio, a.base_url, a.api_version, p.app_id, p.id AS app, p.verified_at,
       p.last_callback_at, a.created_at,
       (SELECT count(*) FROM whatsapp_numbers n
         WHERE n.organization_id = a.organization_id AND n.account_id = a.id AND n.state = 'active') AS numbers,
       (SELECT count(*) FROM whatsapp_templates t
         WHERE t.organization_id = a.organization_id AND t.account_id = a.id AND t.status <> 'removed') AS templates
  FROM whatsapp_accounts a JOIN whatsapp_apps p ON p.id = a.app
 WHERE a.organization_id = $1 AND a.state <> 'removed' ORDER BY a.id
"""
NUMBERS = """
SELECT n.id, n.display_phone_number, n.digits, n.verified_name, n.connection_status, n.quality_rating, n.messaging_tier,
       n.messaging_limit, n.throughput_per_second, n.held_until, n.held_reason, n.last_checked_at, n.graph_id,
       a.waba_id, a.state AS account_state, a.credential_status, a.held_until AS account_held_until,
       a.held_reason AS account_held_reason
  FROM whatsapp_numbers n JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
 WHERE n.organization_id = $1 AND n.state = 'active' ORDER BY n.id
"""
TEMPLATES = """
SELECT t.id, t.name, t.language, t.category, t.status, t.disabled_locally, t.parameter_count, t.quality,
       t.rejection_reason, t.held_until, t.ttl_seconds, t.body_preview, t.graph_id, t.updated_at, a.waba_id,
       t.components, t.parameter_format
  FROM whatsapp_templates t JOIN whatsapp_accounts a ON a.organization_id = t.organization_id AND a.id = t.account_id
 WHERE t.organization_id = $1 AND ($2 OR t.status <> 'removed')
   AND ($3::uuid IS NULL OR t.account_id = $3) AND ($4::text IS NULL OR t.name = $4 OR t.id::text = $4)
   AND ($6::uuid IS NULL OR (t.name, t.language, t.id)
        > (SELECT name, language, id FROM whatsapp_templates WHERE organization_id = $1 AND id = $6))
   AND starts_with(t.name, $7)
 ORDER BY t.name, t.language, t.id LIMIT $5
"""


# The currency of a wallet in use, if it is another one.
OTHER_CURRENCY = """SELECT w.currency FROM wallets w
 WHERE w.organization_id = {organization} AND w.currency <> {currency}
   AND (w.total, w.reserved, w.consumed) <> (0, 0, 0)"""
USED_IN = OTHER_CURRENCY.format(organization="$1", currency="$2")
STANDING = f"""
SELECT a.organization_id, a.id, a.waba_id, a.name, a.token, a.state, a.mirrored_at, {warnings.OPEN} AS warnings,
       a.credential_status, a.credential_detail, a.credential_expires_at,
       a.subscribed, a.mirror_detail, a.base_url,
       p.verified_at IS NOT NULL OR p.last_callback_at IS NOT NULL AS called_back,
       p.last_callback_at, p.unsigned_at, o.name AS organization,
       coalesce(a.held_reason, (
           SELECT min(n.held_reason) FROM whatsapp_numbers n
            WHERE n.organization_id = a.organization_id AND n.account_id = a.id AND n.state = 'active'
              AND n.held_until IS NOT NULL)) AS held_reason,
       ({OTHER_CURRENCY.format(organization="a.organization_id", currency="a.currency")}) AS wallet_currency, a.currency
  FROM whatsapp_accounts a JOIN whatsapp_apps p ON p.id = a.app JOIN organizations o ON o.id = a.organization_id
 WHERE a.state <> 'removed' ORDER BY a.organization_id, a.id
"""


async def attempt(
    conn: Connection, key: Key, client: CloudClient, *, app_id: str, app_secret: str | None, waba_id: str, token: str
) -> Reading:
    """Meta's answers to these values, without storing any: the credential, the account, its numbers and templates.
    Errors from Meta do not raise. `app_secret`: None for a known app. Raises Invalid if it is required."""
    known = await known_app(conn, key, app_id, anew=bool(app_secret))
    if known is None and not app_secret:
        raise Invalid(("app_secret", "required", "`app_secret` is required for a new app"))
    app = known or App(uuid7(), app_id, (str(app_secret).encode(),), "", None, None)
    return await sync.read(client, waba_id, token, app)


async def standing(conn: Connection) -> list[dict[str, Any]]:
    """Every account of every organization: its sealed token, and its problems."""
    return [dict(row) for row in await conn.fetch(STANDING)]


async def accounts_of(conn: Connection, organization_id: UUID) -> list[dict[str, Any]]:
    """The organization's accounts, oldest first."""
    return [dict(row) for row in await conn.fetch(ACCOUNTS, organization_id)]


async def numbers_of(conn: Connection, organization_id: UUID) -> list[dict[str, Any]]:
    """The organization's numbers, oldest first."""
    return [dict(row) for row in await conn.fetch(NUMBERS, organization_id)]


async def templates_of(
    conn: Connection,
    organization_id: UUID,
    *,
    removed: bool = False,
    account_id: UUID | None = None,
    which: str | None = None,
    search: str = "",
    after: UUID | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """The organization's templates by name, including locally disabled ones; `removed`: also removed ones.

    `account_id`: only those of one account; `which`: only those of this name, or the one with this id; `search`: only
    those whose name begins like this; `after`: only those listed after this one.
    """
    rows = await conn.fetch(TEMPLATES, organization_id, removed, account_id, which, limit, after, search)
    return [
        {**{name: value for name, value in row.items() if name not in ("components", "parameter_format")},
         "sendable": reads.sendable(row) and not row["disabled_locally"]}
        for row in rows
    ]  # fmt: skip


async def find_account(conn: Connection, organization_id: UUID, which: str | None) -> BusinessAccount:
    """The account that an operator names by its id, Meta's id or its name, regardless of case and of how accents are
    encoded; None: the only one.

    Raises NotFound, and Invalid if there are several.
    """
    found = await accounts.list_all(conn, organization_id)
    if which is not None:
        wanted = naming.sought(which).lower()
        # An account may have no name: nothing, as from a shell variable that is not set, names none.
        found = [
            one for one in found if wanted and wanted in (str(one.id), one.waba_id, naming.sought(one.name).lower())
        ]
    if len(found) > 1:
        text = "there are several WhatsApp accounts: give the id of one"
        raise Invalid(("account", "ambiguous", text))
    if not found:
        raise NotFound("There is no such WhatsApp account.", account=which)
    return found[0]


async def find_number(conn: Connection, organization_id: UUID, which: str) -> dict[str, Any]:
    """The number that an operator names by id or digits. Raises NotFound."""
    digits = "".join(sign for sign in which if sign.isdigit())
    for one in await numbers_of(conn, organization_id):
        shown = "".join(sign for sign in one["display_phone_number"] if sign.isdigit())
        # Meta may not have said what a number's digits are.
        if str(one["id"]) == which.lower() or (digits and digits in (one["digits"], shown)):
            return one
    raise NotFound("There is no such WhatsApp number.", number=which)


async def find_templates(
    conn: Connection, organization_id: UUID, *, name: str, language: str | None, waba_id: str | None
) -> list[Mapping[str, Any]]:
    """The templates with a name, in one language or all, of one account or all; or the one with an id. Raises
    NotFound."""
    found = [
        one
        for one in await templates_of(conn, organization_id, which=name)
        if (language is None or one["language"] == language) and (waba_id is None or one["waba_id"] == waba_id)
    ]
    if not found:
        raise NotFound("There is no such template.", name=name, language=language)
    return list(found)
