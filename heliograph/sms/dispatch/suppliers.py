"""The suppliers table: accounts that operators add, change, pause, resume and remove. Workers follow within a second.

A supplier is never deleted, since attempts and receipts refer to it; a removed one keeps its row without its secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key, Unsealable, derive_key, seal, unseal
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Sentence, quoted, unpacked
from heliograph.sms.dispatch import routing
from heliograph.sms.dispatch.routing import Supplier
from heliograph.suppliers import kinds
from heliograph.suppliers.slots import IS_HELD

#: Maximum characters of a name.
LONGEST_NAME = 200


class SupplierExists(Refusal):
    """There is already a supplier with this name."""

    code, status = "supplier_already_exists", 409


def seal_key(settings: Settings) -> Key:
    """The key with which suppliers' secrets are sealed."""
    return derive_key(settings.secret_keys, "suppliers")


def open_secret(key: Key, supplier: Supplier) -> str:
    """The account's password."""
    return unseal(key, supplier.secret, context(supplier.id)).decode()


def context(id: UUID) -> str:
    """The sealing context of a supplier's secrets."""
    return f"suppliers/{id}"


ADD = """
INSERT INTO suppliers (id, name, kind, settings, secret, prefixes, priority, weight, sessions, parts, simulated,
                       created_at, changed_at)
VALUES ($1, $2, $3, $4::text::jsonb, $5, $6, $7, $8, $9, $10, $11, $12, $12)
ON CONFLICT DO NOTHING RETURNING id
"""


async def add(
    conn: Connection,
    key: Key,
    *,
    name: str,
    kind: str,
    settings: dict[str, Any],
    secret: str,
    prefixes: tuple[str, ...] = (),
    priority: int = 10,
    weight: int = 1,
    sessions: int = 1,
    parts: str = "all",
    simulated: bool = False,
    id: UUID | None = None,
    by: Principal = SYSTEM,
) -> UUID:
    """Add an account; `settings` were validated by its connector. `id`: that of its draft; None: a new one. Raises
    SupplierExists, Invalid (name, prefixes)."""
    name = naming.checked(name, "name", longest=LONGEST_NAME)
    for prefix in prefixes:
        if not (prefix.isascii() and prefix.isdigit()):
            raise Invalid(("prefixes", "pattern", f"a prefix is digits without +, not {prefix!r}"))
    id = id or uuid7()
    told = {"kind": kind, "prefixes": prefixes, "priority": priority, "weight": weight, "sessions": sessions}
    told |= {"parts": parts, "simulated": simulated, "settings": settings}
    async with conn.transaction():
        added = await conn.fetchval(
            ADD,
            id,
            name,
            kind,
            msgspec.json.encode(settings).decode(),
            seal(key, secret.encode(), context(id)),
            list(prefixes),
            priority,
            weight,
            sessions,
            parts,
            simulated,
            now(),
        )
        if added is None:
            raise SupplierExists(name=name)
        await audit.record(conn, by, "supplier.added", object_id=id, name=name, after=told)
    return id


ID = f"""
SELECT id, name, state FROM suppliers WHERE {naming.IS_CALLED} AND state <> 'removed' ORDER BY {naming.ID_FIRST}
"""
LOCK = f"{ID} FOR UPDATE"


async def lock(conn: Connection, *, supplier: str) -> Supplier:
    """The supplier with this name or id, locked until the end of the transaction. Raises NotFound."""
    id: UUID | None = await conn.fetchval(LOCK, supplier)
    if id is None:
        raise NotFound("There is no such supplier.", supplier=supplier)
    return next(one for one in await routing.load(conn) if one.id == id)


#: For how long callbacks may be signed with a replaced secret: whoever changes it cannot do so here and at the supplier
#: at the same moment, and some suppliers never repeat a callback that was refused. And how many are kept: an SMPP
#: supplier's password signs nothing, so none of these.
OLD_SECRET, MAX_OLD = timedelta(days=1), 4
CHANGE = f"""
UPDATE suppliers SET name = $2, settings = $3::text::jsonb, prefixes = $4, priority = $5, weight = $6, sessions = $7,
       parts = $8, simulated = $9, changed_at = now()
 WHERE id = $1 AND {naming.IS_FREE.format(table="suppliers")} RETURNING id
"""
REPLACE = """
UPDATE suppliers s
   SET secret = $2,
       (old_secrets, old_secrets_until) = (
           SELECT (ARRAY[s.secret] || coalesce(array_agg(old.sealed ORDER BY old.n), '{}'))[:$4],
                  (ARRAY[now() + $3] || coalesce(array_agg(old.until ORDER BY old.n), '{}'))[:$4]
             FROM unnest(s.old_secrets, s.old_secrets_until) WITH ORDINALITY AS old (sealed, until, n)
            WHERE old.until > now())
 WHERE id = $1
"""


async def change(
    conn: Connection,
    key: Key,
    after: Supplier,
    *,
    before: Supplier | None = None,
    secret: str | None = None,
    by: Principal = SYSTEM,
) -> None:
    """Change a supplier from `before` to `after`. `secret`: its new password; None: unchanged.

    Workers follow within a second, and reconnect if settings or password changed. It remains the same supplier, so that
    receipts for earlier messages match, and callbacks signed with its old secret are accepted for OLD_SECRET. Raises
    SupplierExists.
    """
    try:
        async with conn.transaction():
            changed = await conn.fetchval(
                CHANGE,
                after.id,
                after.name,
                msgspec.json.encode(after.settings).decode(),
                list(after.prefixes),
                after.priority,
                after.weight,
                after.sessions,
                after.parts,
                after.simulated,
            )
            if changed is None:
                raise SupplierExists(name=after.name)
            if secret is not None:
                await conn.execute(REPLACE, *_replacement(key, after.id, after.kind, secret))
            told = _audit_values(after) | ({} if secret is None else {"password": secret})
            known = None if before is None else _audit_values(before)
            await audit.record(
                conn, by, "supplier.changed", object_id=after.id, name=after.name, before=known, after=told
            )
    except asyncpg.UniqueViolationError:
        raise SupplierExists(name=after.name) from None


def _replacement(key: Key, id: UUID, kind: str, secret: str) -> tuple[UUID, bytes, timedelta, int]:
    """The values of REPLACE."""
    return id, seal(key, secret.encode(), context(id)), OLD_SECRET, MAX_OLD if kind in kinds.HTTP else 0


OLD_SECRETS = """
SELECT s.id, old.sealed
  FROM suppliers s CROSS JOIN LATERAL unnest(s.old_secrets, s.old_secrets_until) WITH ORDINALITY
       AS old (sealed, until, n)
 WHERE s.id = ANY ($1) AND old.until > now() ORDER BY s.id, old.n
"""


async def old_secrets(conn: Connection, key: Key, ids: Sequence[UUID]) -> dict[UUID, list[str]]:
    """The replaced secrets of these suppliers with which callbacks may still be signed, newest first."""
    found: dict[UUID, list[str]] = {}
    for id, sealed in await conn.fetch(OLD_SECRETS, ids):
        try:
            found.setdefault(id, []).append(unseal(key, sealed, context(id)).decode())
        except Unsealable:  # a secret key that is no longer configured: the current secret decides
            continue
    return found


SECRETS = "SELECT id, secret FROM suppliers WHERE length(secret) > 0"


async def all_open(conn: Connection, key: Key) -> bool:
    """Whether `key` opens the current secrets of all suppliers."""
    try:
        for id, sealed in await conn.fetch(SECRETS):
            unseal(key, sealed, context(id))
    except Unsealable:
        return False
    return True


RECONFIGURE = "UPDATE suppliers SET settings = $2::text::jsonb, changed_at = $3 WHERE id = $1 RETURNING kind"


async def reconfigure(
    conn: Connection, key: Key, *, id: UUID, settings: dict[str, Any], secret: str, by: Principal = SYSTEM
) -> None:
    """Replace an account's settings and password; workers reconnect within a second."""
    async with conn.transaction():
        kind = await conn.fetchval(RECONFIGURE, id, msgspec.json.encode(settings).decode(), now())
        await conn.execute(REPLACE, *_replacement(key, id, kind, secret))
        after = {"settings": settings, "password": secret}
        await audit.record(conn, by, "supplier.changed", object_id=id, after=after)


def _audit_values(one: Supplier) -> dict[str, Any]:
    """A supplier for the audit log: everything that operators set, each setting separately."""
    names = ("name", "prefixes", "priority", "weight", "sessions", "parts", "simulated")
    settings = {f"settings.{name}": value for name, value in one.settings.items()}
    return {name: getattr(one, name) for name in names} | settings


SET_STATE = """
UPDATE suppliers SET state = $2, changed_at = $3, secret = CASE $2 WHEN 'removed' THEN ''::bytea ELSE secret END,
       old_secrets = CASE $2 WHEN 'removed' THEN '{}' ELSE old_secrets END,
       old_secrets_until = CASE $2 WHEN 'removed' THEN '{}' ELSE old_secrets_until END,
       name = CASE $2 WHEN 'removed' THEN name || ' (removed ' || left(id::text, 8) || ')' ELSE name END
 WHERE id = $1
"""


async def set_state(conn: Connection, *, supplier: str, state: str, by: Principal = SYSTEM) -> UUID:
    """Pause ("paused"), drain ("draining"), resume ("active") or remove ("removed") by name or id. Raises NotFound."""
    async with conn.transaction():
        before = await conn.fetchrow(LOCK, supplier)
        if before is None:
            raise NotFound(resource="supplier", id=supplier)
        id: UUID = before["id"]
        await conn.execute(SET_STATE, id, state, now())
        await audit.record(
            conn,
            by,
            "supplier.state_changed",
            object_id=id,
            name=before["name"],
            before={"state": before["state"]},
            after={"state": state},
        )
    return id


RESET = "UPDATE suppliers SET changed_at = now() WHERE id = $1"


async def reset_circuit(conn: Connection, *, supplier: str, by: Principal = SYSTEM) -> UUID:
    """Make all workers forget a supplier's failures: its circuit closes within a second, and opens again if it still
    fails. By name or id. Raises NotFound."""
    async with conn.transaction():
        found = await conn.fetchrow(LOCK, supplier)
        if found is None:
            raise NotFound(resource="supplier", id=supplier)
        id: UUID = found["id"]
        await conn.execute(RESET, id)
        await audit.record(conn, by, "supplier.circuit_reset", object_id=id, name=found["name"])
    return id


async def id_of(conn: Connection, reference: str) -> UUID:
    """A supplier's id, given its name or id. Raises NotFound."""
    id: UUID | None = await conn.fetchval(ID, reference)
    if id is None:
        raise NotFound(f"There is no supplier {reference!r}.", resource="supplier", id=reference)
    return id


SESSIONS = f"""
SELECT supplier_id, count(*) AS leased, count(*) FILTER (WHERE bound) AS bound, max(detail) AS detail
  FROM supplier_sessions WHERE {IS_HELD} GROUP BY supplier_id
"""


NOT_RECEIVING = f"""
SELECT supplier_id, count(*) AS count FROM supplier_sessions
 WHERE {IS_HELD} AND bound AND NOT receives GROUP BY supplier_id
"""


async def deaf(conn: Connection) -> dict[UUID, int]:
    """For each supplier that has any: bound sessions on which nothing can arrive."""
    return {row["supplier_id"]: row["count"] for row in await conn.fetch(NOT_RECEIVING)}


#: The entry of `sessions` for a supplier with no sessions held by any worker.
UNHELD = (0, 0, quoted(""))


async def sessions(conn: Connection) -> dict[UUID, tuple[int, int, Sentence]]:
    """For each supplier: sessions leased by workers, sessions bound, and the last error of those that have them."""
    rows = await conn.fetch(SESSIONS)
    return {row["supplier_id"]: (row["leased"], row["bound"], unpacked(row["detail"])) for row in rows}
