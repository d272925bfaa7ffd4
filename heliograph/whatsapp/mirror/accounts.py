"""WhatsApp Business Accounts: their credentials, the numbers that use them, and the routing of callbacks.

The rule nobody may break: secrets are sealed in their row and leave it only for Meta; an account belongs to one
organization and one app, and no callback of another app ever changes it.

It has over 400 lines because sending, routing and administration read the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key, seal, unseal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import SettingsError
from heliograph.queue import holds
from heliograph.suppliers.whatsapp_cloud.address import API_VERSION, BASE_URL, check_base_url, is_version
from heliograph.suppliers.whatsapp_cloud.credential import Credential, credential
from heliograph.whatsapp.mirror import apps, numbers, warnings

#: Maximum characters of a name.
LONGEST_NAME = 200


class AccountExists(Refusal):
    """This WhatsApp Business Account has already been added."""

    code, status = "whatsapp_account_already_exists", 409


class BusinessAccount(msgspec.Struct, frozen=True):
    """A WhatsApp Business Account as operators see it, and its sealed token."""

    organization_id: UUID
    id: UUID
    app: UUID
    waba_id: str
    name: str
    currency: str
    base_url: str
    api_version: str
    token: bytes
    #: active, paused or removed.
    state: str
    portfolio: str
    #: ok, expiring, missing_scope, invalid or unknown.
    credential_status: str
    credential_detail: str
    credential_expires_at: datetime | None
    credential_checked_at: datetime | None
    held_until: datetime | None
    held_reason: str | None
    mirrored_at: datetime | None
    mirror_at: datetime
    mirror_detail: str
    subscribed: bool | None
    created_at: datetime
    changed_at: datetime


class Route(msgspec.Struct, frozen=True):
    """The owner of an account's callbacks."""

    organization_id: UUID
    account_id: UUID
    waba_id: str
    #: Row id of the only app whose callbacks may concern it.
    app: UUID
    #: Our ids of its numbers, by Meta's.
    numbers: dict[str, UUID]
    #: The same for its removed numbers, for later reports about messages they sent.
    former: dict[str, UUID] = {}
    #: Our ids of its numbers, by their digits, if Meta has said them: one that was added again has another id at Meta.
    digits: dict[str, UUID] = {}
    #: Messages that probe after a hold of the account or of a number.
    trying: frozenset[UUID] = frozenset()


class SendingNumber(msgspec.Struct, frozen=True):
    """A number to send from, with everything needed for it."""

    number_id: UUID
    organization_id: UUID
    account_id: UUID
    app: UUID
    graph_id: str
    digits: str
    base_url: str
    api_version: str
    #: Both sealed; see `credential_of`.
    token: bytes
    app_secret: bytes
    throughput_per_second: int
    #: Nothing is sent before this; after it, one message probes. The later of the account's and the number's.
    held_until: datetime | None
    #: Seconds until then, by the database's clock; below 0: it is over.
    held_for: float | None
    held_reason: str | None
    #: When an operator last ended a hold.
    released_at: datetime | None
    #: When a status last reported that the number sends too fast.
    slowed_at: datetime | None
    #: Whether a recent status shows that a message of the number was sent.
    proven: bool
    #: Owner of the messaging limit, and the limit: unique users a day outside windows; None: no limit.
    portfolio: str
    messaging_limit: int | None
    state: str
    #: See `warnings.REPLIES_ONLY`.
    replies_only: bool = False


#: Meta's codes for an invalid credential; with others, only a permission is missing.
INVALID = frozenset({0, 102, 190})
_ID = re.compile(r"[0-9]{1,40}", re.ASCII)


def open_token(key: Key, account_id: UUID, sealed: bytes) -> str:
    """The account's credential."""
    return unseal(key, sealed, f"whatsapp_accounts/{account_id}/token").decode()


def credential_of(key: Key, line: SendingNumber) -> Credential:
    """The credential to send with from a line."""
    token = open_token(key, line.account_id, line.token)
    return credential(token, apps.open_secret(key, line.app, line.app_secret))


_ACCOUNT = ", ".join(BusinessAccount.__struct_fields__)
# The same account of the same organization is restored, so that its numbers keep their ids.
REVIVE = f"""
UPDATE whatsapp_accounts
   SET app = $3, currency = $4, base_url = $5, api_version = $6, portfolio = $8, changed_at = $9, state = 'active',
       name = $7, credential_status = 'unknown', credential_detail = '', held_until = NULL, held_reason = NULL,
       held_for_status = false, trying_id = NULL, trying_at = NULL,
       mirror_at = $9, numbers_at = $9, templates_at = $9, failures = 0, mirror_detail = '', mirrored_at = NULL,
       numbers_read_at = NULL, templates_read_at = NULL
 WHERE (organization_id, id) = (SELECT organization_id, id FROM whatsapp_accounts
                                 WHERE organization_id = $1 AND waba_id = $2 AND state = 'removed'
                                 ORDER BY changed_at DESC LIMIT 1)
   AND NOT EXISTS (SELECT FROM whatsapp_accounts other WHERE other.waba_id = $2 AND other.state <> 'removed')
RETURNING {_ACCOUNT}
"""
ADD = f"""
INSERT INTO whatsapp_accounts (organization_id, id, app, waba_id, name, currency, base_url, api_version, token,
                               portfolio, created_at, changed_at)
VALUES ($1, $10, $3, $2, $7, $4, $5, $6, '', $8, $9, $9)
ON CONFLICT DO NOTHING RETURNING {_ACCOUNT}
"""
SET_TOKEN = f"""
UPDATE whatsapp_accounts SET token = $3 WHERE organization_id = $1 AND id = $2 RETURNING {_ACCOUNT}
"""


async def add(
    conn: Connection,
    key: Key,
    *,
    organization_id: UUID,
    app_id: str,
    app_secret: str | None,
    verify_token: str | None,
    waba_id: str,
    token: str,
    currency: str,
    base_url: str = BASE_URL,
    api_version: str = API_VERSION,
    portfolio: str | None = None,
    name: str = "",
    by: Principal = SYSTEM,
) -> BusinessAccount:
    """Add an account, and its app if it is new; a removed account is restored with its ids.

    A known app keeps its secret and verify token, so both may be None. Nothing is requested from Meta here. Raises
    Invalid, AccountExists.
    """
    check(
        waba_id=waba_id,
        app_id=app_id,
        currency=currency,
        name=name,
        base_url=base_url,
        api_version=api_version,
        token=token,
    )
    at = clock.now()
    values = (currency, base_url.rstrip("/"), api_version, name, portfolio or waba_id, at)
    async with conn.transaction():
        app = await apps.ensure_app(conn, key, app_id, app_secret, verify_token, at, by)
        try:
            async with conn.transaction():
                row = await conn.fetchrow(REVIVE, organization_id, waba_id, app, *values)
                if row is None:
                    row = await conn.fetchrow(ADD, organization_id, waba_id, app, *values, uuid7())
        except asyncpg.UniqueViolationError:  # another organization's was restored at the same moment
            row = None
        if row is None:
            raise AccountExists(wabaId=waba_id)
        row = await conn.fetchrow(SET_TOKEN, organization_id, row["id"], _sealed_token(key, row["id"], token))
        account = _account(row)
        await _record(conn, by, "whatsapp_account.added", account, after=_audit_values(account))
    return account


def check(
    *,
    waba_id: str | None = None,
    app_id: str | None = None,
    currency: str | None = None,
    name: str | None = None,
    base_url: str | None = None,
    api_version: str | None = None,
    token: str | None = None,
) -> None:
    """Raise Invalid with all malformed values."""
    problems = []
    if name and (len(name) > LONGEST_NAME or not naming.is_plain(name) or not naming.is_readable(name)):
        problems.append(("name", "pattern", f"`name` has at most {LONGEST_NAME} characters, none of them hidden"))
    for field, id in (("waba_id", waba_id), ("app_id", app_id)):
        if id is not None and not _ID.fullmatch(id):
            problems.append((field, "pattern", f"`{field}` must be digits"))
    if currency is not None and not re.fullmatch("[A-Z]{3}", currency):
        problems.append(("currency", "pattern", "`currency` must be three capitals, such as EUR"))
    if base_url is not None:
        try:
            check_base_url(base_url)
        except SettingsError as error:
            problems.append(("base_url", "pattern", f"`base_url`: {error}"))
    if api_version is not None and not is_version(api_version):
        problems.append(("api_version", "pattern", "`api_version` must be like v25.0"))
    if token is not None and not re.fullmatch("[!-~]{1,4096}", token):
        problems.append(("token", "pattern", "`token` must be one word of ASCII"))
    if problems:
        raise Invalid(*problems)


UPDATE = f"""
UPDATE whatsapp_accounts
   SET name = coalesce($3, name), base_url = coalesce($4, base_url), api_version = coalesce($5, api_version),
       portfolio = coalesce($6, portfolio), token = coalesce($7, token), changed_at = $8,
       credential_status = CASE WHEN $7 IS NULL THEN credential_status ELSE 'unknown' END,
       credential_checked_at = CASE WHEN $7 IS NULL THEN credential_checked_at ELSE $8 END,
       held_until = CASE WHEN $7 IS NULL THEN held_until ELSE least(held_until, $8) END,
       trying_at = CASE WHEN $7 IS NULL THEN trying_at END, trying_id = CASE WHEN $7 IS NULL THEN trying_id END,
       mirror_at = $8, numbers_at = $8, templates_at = $8
 WHERE organization_id = $1 AND id = $2 AND state <> 'removed'
   AND ($9::text[] IS NULL OR $9 = ARRAY[name, base_url, api_version])
RETURNING {_ACCOUNT}
"""


async def update(
    conn: Connection,
    key: Key,
    *,
    organization_id: UUID,
    account_id: UUID,
    name: str | None = None,
    token: str | None = None,
    base_url: str | None = None,
    api_version: str | None = None,
    portfolio: str | None = None,
    seen: BusinessAccount | None = None,
    by: Principal = SYSTEM,
) -> BusinessAccount:
    """Change the given values. A new token ends the old one's hold: one message probes. `seen`: the account as shown
    when the difference was reviewed; None: any. Raises Invalid, NotFound."""
    check(name=name, base_url=base_url, api_version=api_version, token=token)
    as_seen = None if seen is None else [seen.name, seen.base_url, seen.api_version]
    sealed = None if token is None else _sealed_token(key, account_id, token)
    base_url = base_url and base_url.rstrip("/")
    at = clock.now()
    async with conn.transaction():
        was = await conn.fetchrow(GET, organization_id, account_id)
        before = await numbers.of_account(conn, organization_id, account_id)
        row = await conn.fetchrow(
            UPDATE, organization_id, account_id, name, base_url, api_version, portfolio, sealed, at, as_seen
        )
        if row is None and was is not None and seen is not None:
            raise Invalid(
                ("name", "moved", "Somebody has changed this account in the meantime. Review the difference again.")
            )
        await numbers.announce(conn, organization_id, account_id, before, at=at)
        account = _known(row, account_id)
        after = _audit_values(account) | ({} if token is None else {"token": token})
        await _record(
            conn, by, "whatsapp_account.changed", account, before=_audit_values(_known(was, account_id)), after=after
        )
    return account


# Waits for workers that have found it paused (`dispatch.channel.HOLD_PAUSED`), for which no other change waits.
LOCK = "SELECT FROM whatsapp_accounts WHERE organization_id = $1 AND id = $2 FOR UPDATE"
SET_STATE = f"""
UPDATE whatsapp_accounts
   SET state = $3, changed_at = $4, mirror_at = $4, token = CASE $3 WHEN 'removed' THEN ''::bytea ELSE token END
 WHERE organization_id = $1 AND id = $2 AND state <> 'removed'
RETURNING {_ACCOUNT}
"""
# If the account is added again, what Meta then lists counts, however recent its last event about them.
END_NUMBERS = """
UPDATE whatsapp_numbers SET state = 'removed', changed_at = $3, applied = applied - 'connection'
 WHERE organization_id = $1 AND account_id = $2
"""
END_TEMPLATES = """
UPDATE whatsapp_templates SET status = 'removed', reread_at = NULL, applied = applied - 'status'
 WHERE organization_id = $1 AND account_id = $2
"""


async def set_state(
    conn: Connection, *, organization_id: UUID, account_id: UUID, state: str, by: Principal = SYSTEM
) -> BusinessAccount:
    """Pause ("paused"), resume ("active") or remove ("removed") an account. Raises NotFound.

    A paused account is mirrored and gets callbacks, but sends nothing: queued messages wait. A removed one loses its
    credential, numbers and templates; its messages stay on record.
    """
    async with conn.transaction():
        at = clock.now()
        await conn.execute(LOCK, organization_id, account_id)
        before = await numbers.of_account(conn, organization_id, account_id)
        row = await conn.fetchrow(SET_STATE, organization_id, account_id, state, at)
        if state == "active":
            # After the account's lock: what workers were putting back is there now.
            await holds.resume(conn, organization_id, kinds=("whatsapp",), lines=before)
        if state == "removed":
            await conn.execute(END_NUMBERS, organization_id, account_id, at)
            await conn.execute(END_TEMPLATES, organization_id, account_id)
        await numbers.announce(conn, organization_id, account_id, before, at=at)
        account = _known(row, account_id)
        await _record(conn, by, "whatsapp_account.state_changed", account, after={"state": state})
    return account


async def _record(
    conn: Connection,
    by: Principal,
    action: str,
    account: BusinessAccount,
    *,
    before: dict[str, object] | None = None,
    after: dict[str, object] | None = None,
) -> None:
    await audit.record(
        conn,
        by,
        action,
        object_id=account.id,
        name=account.name,
        organization_id=account.organization_id,
        before=before,
        after=after,
    )


def _audit_values(account: BusinessAccount) -> dict[str, object]:
    """The fields of an account in the audit log."""
    names = ("waba_id", "name", "currency", "base_url", "api_version", "portfolio")
    return {name: getattr(account, name) for name in names}


LIST = f"SELECT {_ACCOUNT} FROM whatsapp_accounts WHERE organization_id = $1 AND state <> 'removed' ORDER BY id"


async def list_all(conn: Connection, organization_id: UUID) -> list[BusinessAccount]:
    """The organization's accounts, oldest first, without removed ones."""
    return [_account(row) for row in await conn.fetch(LIST, organization_id)]


GET = f"SELECT {_ACCOUNT} FROM whatsapp_accounts WHERE organization_id = $1 AND id = $2"


async def get(conn: Connection, organization_id: UUID, account_id: UUID) -> BusinessAccount:
    """The account. Raises NotFound."""
    return _known(await conn.fetchrow(GET, organization_id, account_id), account_id)


ROUTES = """
SELECT a.organization_id, a.id, a.waba_id, a.app,
       array(SELECT (n.graph_id, n.id, n.state, n.digits) FROM whatsapp_numbers n
              WHERE n.organization_id = a.organization_id AND n.account_id = a.id) AS numbers,
       array_remove(a.trying_id || array(SELECT n.trying_id FROM whatsapp_numbers n
              WHERE n.organization_id = a.organization_id AND n.account_id = a.id AND n.trying_id IS NOT NULL),
              NULL) AS trying
  FROM whatsapp_accounts a WHERE a.waba_id = ANY ($1) AND a.state <> 'removed'
"""


async def routes(conn: Connection, waba_ids: Sequence[str]) -> dict[str, Route]:
    """The current routes of those accounts that exist here."""
    return {
        row["waba_id"]: Route(
            row["organization_id"],
            row["id"],
            row["waba_id"],
            row["app"],
            {graph_id: id for graph_id, id, state, _ in row["numbers"] if state == "active"},
            {graph_id: id for graph_id, id, state, _ in row["numbers"] if state != "active"},
            {digits: id for _, id, state, digits in row["numbers"] if state == "active" and digits},
            frozenset(row["trying"]),
        )
        for row in await conn.fetch(ROUTES, waba_ids)
    }


#: A number without a `sent` status for longer than this begins with a few messages, seconds.
PROVEN = 60.0

ANY_NUMBER = "EXISTS (SELECT FROM whatsapp_numbers)"
# Without a hold both are NULL, and greatest() ignores NULL.
LINES = f"""
SELECT n.id, n.organization_id, n.account_id, a.app, n.graph_id, n.digits, a.base_url, a.api_version, a.token,
       p.secret, n.throughput_per_second, greatest(a.held_until, n.held_until) AS held_until,
       extract(epoch FROM greatest(a.held_until, n.held_until) - now())::float8 AS held_for,
       CASE WHEN n.held_until IS NULL OR a.held_until >= n.held_until THEN a.held_reason ELSE n.held_reason END,
       greatest(a.released_at, n.released_at) AS released_at, n.slowed_at,
       coalesce(n.last_sent_at > now() - make_interval(secs => $1), false) AS proven,
       a.portfolio, n.messaging_limit, a.state, {warnings.REPLIES_ONLY} IS NOT NULL
  FROM whatsapp_accounts a
  JOIN whatsapp_apps p ON p.id = a.app
  JOIN whatsapp_numbers n ON n.organization_id = a.organization_id AND n.account_id = a.id
 WHERE a.state = 'active' AND n.state = 'active'
"""


async def load_lines(conn: Connection) -> list[SendingNumber]:
    """Every active number of every active account."""
    return [SendingNumber(*row.values()) for row in await conn.fetch(LINES, PROVEN)]


def _sealed_token(key: Key, account_id: UUID, token: str) -> bytes:
    return seal(key, token.encode(), f"whatsapp_accounts/{account_id}/token")


def _account(row: asyncpg.Record | None) -> BusinessAccount:
    assert row is not None
    return BusinessAccount(**row)


def _known(row: asyncpg.Record | None, id: UUID) -> BusinessAccount:
    if row is None:
        raise NotFound("There is no such WhatsApp account.", id=str(id))
    return _account(row)
