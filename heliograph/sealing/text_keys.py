"""Encryption of texts at rest: each organization that enables it has a data key, destroyed when it is closed.

A data key is 32 random bytes, stored sealed under the installation's secret key. A sealed text is SEALED followed by
the base64 of what `crypto.seal` returns for the table and id of its row, so columns keep their types, and sealed and
open rows can coexist; an open text that happens to begin with MARK is stored with the prefix OPEN. PostgreSQL never
sees a key. A text whose key has been destroyed reads as erased: None.

The rule nobody may break: while an organization has a key in use, a text is stored sealed or not at all; and a text
that cannot be opened because this process lacks the secret key is never treated as erased by the code that sends it.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from time import monotonic
from typing import Any
from uuid import UUID

import msgspec
import structlog

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key, Unsealable, derive_key, seal, unseal
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Invalid, NotFound, Unavailable
from heliograph.base.loading_cache import EVERY
from heliograph.base.process.settings import Settings
from heliograph.queue.leases import places

log = structlog.get_logger()

#: The beginning of stored texts that differ from their content: sealed ones, and open ones that begin with MARK.
MARK = "sealed:"
SEALED, OPEN = f"{MARK}1:", f"{MARK}0:"
#: Length of a data key.
BYTES = 32

#: The key that seals data keys in this process, once it is armed.
_armed: list[Key] = []


class Locked(Exception):
    """A data key cannot be opened: this process has no secret key, or not the one that the key was sealed with."""


class Item(msgspec.Struct, frozen=True, gc=False):
    """A text as stored, with its row."""

    organization_id: UUID
    id: UUID
    text: str | None


class Sealed(msgspec.Struct, frozen=True):
    """The setting of an organization."""

    #: New texts are sealed.
    seals_texts: bool
    #: State of the key: "none" before it was first enabled, "kept", or "destroyed" by closing.
    key: str
    #: When the key was created.
    since: datetime | None


def seal_key(settings: Settings) -> Key:
    """The key that seals data keys."""
    return derive_key(settings.secret_keys, "text keys")


def context(organization_id: UUID) -> str:
    """The context of a data key's seal."""
    return f"text_keys/{organization_id}"


def arm(settings: Settings) -> None:
    """Let this process open and seal texts. Global, because texts are read in thirty places that have a connection and
    an actor, and none of them should know secrets. Without a secret key, does nothing."""
    if settings.secret_key:
        _armed[:] = [seal_key(settings)]


GET = "SELECT is_used, sealed IS NOT NULL AS has_key, created_at FROM text_keys WHERE organization_id = $1"


async def get(conn: Connection, *, organization_id: UUID) -> Sealed:
    """An organization's setting."""
    row = await conn.fetchrow(GET, organization_id)
    if row is None:
        return Sealed(False, "none", None)
    return Sealed(row["is_used"], "kept" if row["has_key"] else "destroyed", row["created_at"])


LOCK = "SELECT name, state FROM organizations WHERE id = $1 FOR NO KEY UPDATE"
# An existing key is used again: what it sealed stays readable.
SWITCH_ON = """
INSERT INTO text_keys AS known (organization_id, sealed, is_used, created_at) VALUES ($1, $2, true, now())
ON CONFLICT (organization_id) DO UPDATE
   SET is_used = true, sealed = coalesce(known.sealed, excluded.sealed),
       created_at = CASE WHEN known.sealed IS NULL THEN excluded.created_at ELSE known.created_at END
"""
SWITCH_OFF = "UPDATE text_keys SET is_used = false WHERE organization_id = $1"


async def switch(conn: Connection, *, organization_id: UUID, on: bool, by: Principal = SYSTEM) -> Sealed:
    """Start or stop sealing an organization's new texts; every process knows within three seconds. Stored texts are
    unchanged. Raises NotFound, and Invalid for a closed organization or without a secret key."""
    async with conn.transaction():
        found = await conn.fetchrow(LOCK, organization_id)
        if found is None:
            raise NotFound(resource="organization", id=str(organization_id))
        before = await get(conn, organization_id=organization_id)
        if on and found["state"] == "closed":
            raise Invalid(("seal", "state", "a closed organization seals no texts: its key was thrown away"))
        if on:
            await conn.execute(SWITCH_ON, organization_id, _new(organization_id))
        else:
            await conn.execute(SWITCH_OFF, organization_id)
        after = await get(conn, organization_id=organization_id)
        if after.seals_texts != before.seals_texts:
            await audit.record(
                conn,
                by,
                "organization.configured",
                object_id=organization_id,
                name=found["name"],
                organization_id=organization_id,
                before={"seals_texts": before.seals_texts},
                after={"seals_texts": after.seals_texts},
            )
    return after


DESTROY = "UPDATE text_keys SET sealed = NULL WHERE organization_id = $1 AND sealed IS NOT NULL RETURNING true"


async def destroy(conn: Connection, organization_id: UUID) -> bool:
    """Permanently destroy an organization's key, in the transaction that closes it; returns whether there was one."""
    return bool(await conn.fetchval(DESTROY, organization_id))


async def renew(conn: Connection, organization_id: UUID) -> None:
    """Create a new key for a reopened organization, if it seals texts. Raises Invalid."""
    known = await get(conn, organization_id=organization_id)
    if known.seals_texts and known.key == "destroyed":
        await conn.execute(SWITCH_ON, organization_id, _new(organization_id))


def _new(organization_id: UUID) -> bytes:
    if not _armed:
        raise Invalid(("secret_key", "required", "a key for texts needs the installation's HELIOGRAPH_SECRET_KEY"))
    return seal(_armed[0], os.urandom(BYTES), context(organization_id))


USED = "SELECT organization_id, sealed FROM text_keys WHERE is_used"
USED_BY = f"{USED} AND organization_id = ANY ($1)"


class Sealing:
    """The keys in use, held by a process that stores texts. For organizations that seal nothing, the cost is one
    look-up in a dictionary."""

    def __init__(self) -> None:
        #: None: the key cannot be opened here.
        self._keys: dict[UUID, Key | None] = {}
        self._refreshed_at = float("-inf")

    @classmethod
    async def of(cls, conn: Connection, organizations: Collection[UUID]) -> Sealing:
        """The current keys of these organizations, for a transaction that stores their texts."""
        made = cls()
        made._take(await conn.fetch(USED_BY, list(organizations)) if organizations else ())
        return made

    @property
    def age(self) -> float:
        """Seconds since the last `refresh` began."""
        return monotonic() - self._refreshed_at

    async def refresh(self, conn: Connection | Pool) -> None:
        """Reload the keys, unless that was done within the last EVERY seconds."""
        if self.age < EVERY:
            return
        at = monotonic()
        self._take(await conn.fetch(USED))
        self._refreshed_at = at

    def _take(self, rows: Iterable[Any]) -> None:
        self._keys = {row["organization_id"]: self._key(row["organization_id"], row["sealed"]) for row in rows}

    def _key(self, organization_id: UUID, sealed: bytes | None) -> Key | None:
        try:
            # Just closed: texts sealed under a key that is not stored can never be read.
            return Key([os.urandom(BYTES)]) if sealed is None else _unsealed(organization_id, sealed)
        except Locked:
            log.error("an organization's text key cannot be opened", organization_id=str(organization_id))
            return self._keys.get(organization_id)

    def sealed(self, organization_id: UUID, table: str, id: UUID, text: str) -> str:
        """The text in the form to be stored in this row. Raises Unavailable if its key cannot be opened here."""
        if organization_id not in self._keys:
            return kept_open(text)
        return SEALED + base64.b64encode(self.sealed_octets(organization_id, table, id, text.encode())).decode()

    def sealed_octets(self, organization_id: UUID, table: str, id: UUID, octets: bytes) -> bytes:
        """The same for octets, whose row records that they are sealed; for an organization that seals its texts."""
        key = self._keys[organization_id]
        if key is None:
            raise Unavailable
        return seal(key, octets, f"{table}/{id}")

    def seals(self, organization_id: UUID) -> bool:
        """True if its texts are sealed."""
        return organization_id in self._keys

    def is_locked(self, organization_id: UUID) -> bool:
        """True if its texts should be sealed but cannot be, because its key does not open here."""
        return organization_id in self._keys and self._keys[organization_id] is None


class Opened(msgspec.Struct, frozen=True):
    """Opened texts, in order; None: erased, or its key was destroyed. Texts of the organizations in `locked` are None
    as well, but still exist: the key does not open here, or its row is missing."""

    texts: list[str | None]
    locked: frozenset[UUID]


KEYS = "SELECT organization_id, sealed FROM text_keys WHERE organization_id = ANY ($1)"


async def read(conn: Connection, table: str, items: Sequence[Item]) -> Opened:
    """Open texts of a table, for callers that must distinguish unreadable texts from erased ones. One query, if any is
    sealed."""
    if not any(is_marked(item.text) for item in items):
        return Opened([item.text for item in items], frozenset())
    wanted = {item.organization_id for item in items if item.text is not None and item.text.startswith(SEALED)}
    keys, locked = await _keys(conn, wanted)
    return Opened([_opened(item, table, keys) for item in items], locked)


async def read_octets(
    conn: Connection, table: str, items: Sequence[tuple[UUID, UUID, bytes]]
) -> tuple[list[bytes | None], frozenset[UUID]]:
    """The same for results of `Sealing.sealed_octets`, as (organization, id, octets). Empty octets stay empty."""
    keys, locked = await _keys(conn, {whose for whose, _, octets in items if octets})
    found: list[bytes | None] = []
    for whose, id, octets in items:
        key = keys.get(whose)
        try:
            found.append(octets if not octets else None if key is None else unseal(key, octets, f"{table}/{id}"))
        except Unsealable:
            found.append(None)
    return found, locked


async def _keys(conn: Connection, wanted: set[UUID]) -> tuple[dict[UUID, Key], frozenset[UUID]]:
    """The keys of these organizations, and the organizations whose key does not open here or is missing."""
    rows = await conn.fetch(KEYS, list(wanted)) if wanted else ()
    stored: dict[UUID, bytes | None] = {row["organization_id"]: row["sealed"] for row in rows}
    keys: dict[UUID, Key] = {}
    locked = wanted - stored.keys()
    for id, sealed in stored.items():
        if sealed is None:
            continue  # destroyed
        try:
            keys[id] = _unsealed(id, sealed)
        except Locked:
            locked.add(id)
    for id in locked:
        log.error("an organization's text key cannot be opened", organization_id=str(id))
    return keys, frozenset(locked)


async def opens(conn: Connection, organization_id: UUID) -> bool:
    """True if an organization's sealed texts, if any, can be read here."""
    return not await _locked(conn, {organization_id})


async def openable(conn: Connection, rows: Sequence[tuple[UUID, UUID]]) -> dict[UUID, UUID]:
    """Id → organization of those rows, given as (organization, id), whose sealed texts, if any, can be read here."""
    locked = await _locked(conn, {whose for whose, _ in rows})
    return {id: whose for whose, id in rows if whose not in locked}


async def _locked(conn: Connection, organizations: set[UUID]) -> set[UUID]:
    """The organizations among these whose key does not open here."""
    rows = await conn.fetch(KEYS, list(organizations)) if organizations else ()
    stored = {row["organization_id"]: row["sealed"] for row in rows}
    return {id for id, sealed in stored.items() if sealed is not None and not _opens(id, sealed)}


def _opens(organization_id: UUID, sealed: bytes) -> bool:
    try:
        _unsealed(organization_id, sealed)
    except Locked:
        return False
    return True


async def opened(conn: Connection, table: str, items: Sequence[Item]) -> list[str | None]:
    """Open texts of a table, in order, for display: those that cannot be read are None."""
    return (await read(conn, table, items)).texts


async def opened_of(
    conn: Connection, organization_id: UUID, table: str, texts: Iterable[tuple[UUID, str | None]]
) -> dict[UUID, str | None]:
    """The same for one organization, by the ids of the rows."""
    items = [Item(organization_id, id, text) for id, text in texts]
    return dict(zip((item.id for item in items), await opened(conn, table, items), strict=True))


class Standing(msgspec.Struct, frozen=True):
    """The state of all keys: how many organizations have one, and names of those whose texts cannot be read."""

    keys: int
    #: Their key does not open with this process's secret key.
    locked: list[str]
    #: Sealed messages are waiting, but the key is missing.
    missing: list[str]


ALL = """
SELECT k.organization_id, k.sealed, o.name FROM text_keys k JOIN organizations o ON o.id = k.organization_id
 WHERE k.sealed IS NOT NULL ORDER BY lower(o.name)
"""
#: Tables and columns of texts waiting in the queue, by kind.
WAITING = {"sms": ("messages", "body"), "whatsapp": ("whatsapp_messages", "content")}
#: Places in the queue and waiting texts to look at; hundreds of thousands may be waiting when no worker is left, which
#: is one of the problems that the checks are for.
PLACES, TEXTS = 1_000, 2_000
# For organizations without a key, this reads some of their waiting texts, the same number of each.
_MISSING = f"""
WITH RECURSIVE {places("(VALUES ('{kind}'))", goes_on=f"place.step < {PLACES}")}, share (rows) AS MATERIALIZED (
    SELECT least(greatest({TEXTS} / greatest(count(*), 1), 1), 1000) FROM place
)
SELECT DISTINCT o.name FROM place JOIN organizations o ON o.id = place.organization_id
 WHERE NOT EXISTS (SELECT FROM text_keys k WHERE k.organization_id = place.organization_id)
   AND EXISTS (SELECT FROM (SELECT id FROM queue
                             WHERE kind = place.kind AND line = place.line AND lane = place.lane
                               AND organization_id = place.organization_id
                             ORDER BY coalesce(since, due_at) LIMIT (SELECT rows FROM share)) waiting
                      CROSS JOIN LATERAL (SELECT {{column}} AS text FROM {{table}}
                                           WHERE organization_id = place.organization_id AND id = waiting.id
                                           LIMIT 1) m
                WHERE m.text LIKE '{SEALED}%')
"""
MISSING = [_MISSING.format(kind=kind, table=table, column=column) for kind, (table, column) in WAITING.items()]


async def standing(conn: Connection) -> Standing:
    """The state of all organizations' keys."""
    rows = await conn.fetch(ALL)
    locked = [row["name"] for row in rows if not _opens(row["organization_id"], row["sealed"])]
    missing = {row["name"] for sql in MISSING for row in await conn.fetch(sql)}
    return Standing(len(rows), locked, sorted(missing))


def kept_open(text: str) -> str:
    """An open text in the form to be stored."""
    return OPEN + text if text.startswith(MARK) else text


def is_marked(text: str | None) -> bool:
    """True if a stored text differs from its content, so that it has to go through `opened`."""
    return text is not None and text.startswith(MARK)


def _opened(item: Item, table: str, keys: dict[UUID, Key]) -> str | None:
    if item.text is None or not is_marked(item.text):
        return item.text
    if item.text.startswith(OPEN):
        return item.text.removeprefix(OPEN)
    key = keys.get(item.organization_id)
    if key is None:
        return None
    try:
        return unseal(key, base64.b64decode(item.text.removeprefix(SEALED)), f"{table}/{item.id}").decode()
    except (Unsealable, binascii.Error):
        # Its key was destroyed, or it was altered or belongs to another row.
        return None


def _unsealed(organization_id: UUID, sealed: bytes) -> Key:
    if not _armed:
        raise Locked("this process has no secret key")
    try:
        return Key([unseal(_armed[0], sealed, context(organization_id))])
    except Unsealable as error:
        raise Locked(str(error)) from None
