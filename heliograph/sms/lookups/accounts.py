"""The table `lookup_suppliers`: accounts for looking up numbers, which operators add, change and remove."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, get_type_hints
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key, seal, unseal
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import SettingsError
from heliograph.base.sentences import joined
from heliograph.suppliers.lookups import kinds
from heliograph.suppliers.lookups.kind import LookupSettings
from heliograph.suppliers.settings import SettingError, describe_error


class Account(msgspec.Struct, frozen=True):
    """One account, as described by its row. `secret` is still sealed."""

    id: UUID
    name: str
    kind: str
    #: The stored settings, and all settings including defaults.
    values: dict[str, Any]
    settings: LookupSettings
    secret: bytes
    state: str
    changed_at: datetime


LOAD = """
SELECT id, name, kind, settings::text, secret, state, changed_at FROM lookup_suppliers
 WHERE state <> 'removed' ORDER BY name
"""


async def load(conn: Connection | Pool) -> list[Account]:
    """All accounts except removed ones, by name."""
    return [_account(row) for row in await conn.fetch(LOAD)]


def parsed(kind: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Parse settings of a kind, given as `KEY=VALUE`; lists are separated by commas, and an empty value is None, the
    default. Raises Invalid, which names the setting."""
    hints = get_type_hints(kinds.KINDS[kind].settings)
    values: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or name not in hints:
            known = ", ".join(hints)
            raise Invalid((name, "unknown", f"{pair!r} is not KEY=VALUE with a setting of {kind}: {known}"))
        if not text:
            values[name] = None
        elif hints[name] == tuple[str, ...]:
            values[name] = [one.strip().upper() for one in text.split(",") if one.strip()]
        else:
            try:
                values[name] = msgspec.convert(text, hints[name], strict=False)
            except msgspec.ValidationError as error:
                raise Invalid((name, "format", joined([name, describe_error(str(error))], " "))) from None
    return values


def serving(accounts: Sequence[Account], country: str) -> Account | None:
    """The account that looks up numbers of a country: the first that names it, otherwise the first that names none;
    None: no account, or its look-ups are not worth their price."""
    able = [one for one in accounts if one.state == "active" and country in one.settings.countries]
    able += [one for one in accounts if one.state == "active" and not one.settings.countries]
    return able[0] if able and able[0].settings.is_worth_it else None


def open_secret(key: Key, account: Account) -> str:
    """Open its secrets, which are sealed together. Raises Unsealable."""
    return unseal(key, account.secret, context(account.id)).decode()


def context(id: UUID) -> str:
    """The context with which its secrets are sealed."""
    return f"lookup_suppliers/{id}"


INSERT = """
INSERT INTO lookup_suppliers (id, name, kind, settings, secret, created_at, changed_at)
VALUES ($1, $2, $3, $4::text::jsonb, $5, now(), clock_timestamp())
ON CONFLICT DO NOTHING RETURNING id
"""


async def add(
    conn: Connection,
    key: Key,
    *,
    name: str,
    kind: str,
    values: Mapping[str, Any],
    secrets: Mapping[str, str],
    by: Principal = SYSTEM,
) -> UUID:
    """Add an account. Raises Invalid, which names the setting."""
    name = naming.checked(name, "name", longest=64)
    _check(kind, values)
    id = uuid7()
    sealed = seal(key, msgspec.json.encode(secrets), context(id))
    async with conn.transaction():
        if await conn.fetchval(INSERT, id, name, kind, msgspec.json.encode(values).decode(), sealed) is None:
            raise _taken(name)
        told = {"kind": kind, "settings": values}
        await audit.record(conn, by, "lookup.added", object_id=id, name=name, after=told)
    return id


ID = f"""
SELECT id FROM lookup_suppliers WHERE {naming.IS_CALLED} AND state <> 'removed' ORDER BY {naming.ID_FIRST}
"""
LOCK = f"{ID} FOR UPDATE"
CHANGE = """
UPDATE lookup_suppliers SET settings = $2::text::jsonb, secret = coalesce($3, secret), changed_at = clock_timestamp()
 WHERE id = $1
"""


async def change(
    conn: Connection,
    key: Key,
    *,
    account: str,
    values: Mapping[str, Any],
    secrets: Mapping[str, str] | None = None,
    by: Principal = SYSTEM,
) -> Account:
    """Change settings of the account with this name or id; None restores a default. `secrets`: replace all secrets;
    None: unchanged. Raises NotFound, Invalid."""
    async with conn.transaction():
        before = await find(conn, account, query=LOCK)
        after = {name: value for name, value in (before.values | dict(values)).items() if value is not None}
        _check(before.kind, after)
        sealed = None if secrets is None else seal(key, msgspec.json.encode(secrets), context(before.id))
        await conn.execute(CHANGE, before.id, msgspec.json.encode(after).decode(), sealed)
        told = {"settings": after} | ({} if secrets is None else {"password": "changed"})
        known = {"settings": before.values}
        await audit.record(conn, by, "lookup.changed", object_id=before.id, name=before.name, before=known, after=told)
    return msgspec.structs.replace(before, values=after, settings=kinds.settings_from(before.kind, after))


STATE = """
UPDATE lookup_suppliers SET state = $2, changed_at = clock_timestamp(),
       secret = CASE $2 WHEN 'removed' THEN '' ELSE secret END
 WHERE id = $1
"""


async def set_state(
    conn: Connection, *, account: str, state: Literal["active", "paused", "removed"], by: Principal = SYSTEM
) -> Account:
    """Pause, resume or remove an account; its results are kept. A removed one keeps its row without its secrets, since
    look-ups refer to it. Raises NotFound."""
    async with conn.transaction():
        before = await find(conn, account, query=LOCK)
        if state == before.state:
            return before
        await conn.execute(STATE, before.id, state)
        known, told = {"state": before.state}, {"state": state}
        await audit.record(conn, by, "lookup.changed", object_id=before.id, name=before.name, before=known, after=told)
    return msgspec.structs.replace(before, state=state)


async def find(conn: Connection, account: str, *, query: str = ID) -> Account:
    """The account with this name or id. Raises NotFound."""
    id: UUID | None = await conn.fetchval(query, account)
    found = next((one for one in await load(conn) if one.id == id), None)
    if found is None:
        raise NotFound("There is no such look-up supplier.", lookup=account)
    return found


def _account(row: asyncpg.Record) -> Account:
    values = msgspec.json.decode(row["settings"])
    settings = kinds.settings_from(row["kind"], values)
    return Account(
        row["id"], row["name"], row["kind"], values, settings, row["secret"], row["state"], row["changed_at"]
    )


def _taken(name: str) -> Invalid:
    return Invalid(("name", "taken", f"there is already a look-up supplier {name!r}"))


def _check(kind: str, values: Mapping[str, Any]) -> None:
    try:
        kinds.settings_from(kind, values)
    except SettingsError as error:
        text = str(error)
        words = error.words if isinstance(error, SettingError) else text
        raise Invalid((text.split()[0].strip(":`"), "invalid", words)) from None
