"""Texts sealed at rest: each organization that wants it has a data key, which is thrown away when it is closed.

A data key is 32 random bytes, kept sealed by the installation's secret key. A sealed text is SEALED and the base64 of
what `crypto.seal` returns for the table and id of its row, so columns keep their types, and rows from before and after
the switch stand side by side; an open one that happens to begin with MARK is stored behind OPEN. PostgreSQL never sees
a key. A text whose key is gone reads as one that was erased: None.

The rule nobody may break: while an organization has a key in use, a text is stored sealed or not at all; and a text
that does not open because this process lacks the secret key is never taken for an erased one by whoever sends it.
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
from heliograph.base.actor import SYSTEM, Who
from heliograph.base.crypto import Key, Unsealable, derive_key, seal, unseal
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Invalid, NotFound, Unavailable
from heliograph.base.loading_cache import EVERY
from heliograph.base.process.settings import Settings

log = structlog.get_logger()

#: What a stored text begins with that is not what it says: a sealed one, and an open one that begins so itself.
MARK = "sealed:"
SEALED, OPEN = f"{MARK}1:", f"{MARK}0:"
#: Of a data key.
BYTES = 32

#: What seals the data keys of this process, once it is armed.
_armed: list[Key] = []


class Locked(Exception):
    """A data key cannot be opened: this process has no secret key, or another one than the key was sealed with."""


class Item(msgspec.Struct, frozen=True, gc=False):
    """A text as it is stored, with its row."""

    organization_id: UUID
    id: UUID
    text: str | None


class Sealed(msgspec.Struct, frozen=True):
    """The setting of an organization."""

    #: New texts are sealed.
    seals_texts: bool
    #: Whether there is a key: "none" before the first switch, "kept", or "destroyed" by closing.
    key: str
    #: When the key was made.
    since: datetime | None


def seal_key(settings: Settings) -> Key:
    """The key that data keys are sealed under."""
    return derive_key(settings.secret_keys, "text keys")


def context(organization_id: UUID) -> str:
    """The context of a data key's seal."""
    return f"text_keys/{organization_id}"


def arm(settings: Settings) -> None:
    """Let this process open and seal texts: texts are read in thirty places that hold a connection and an actor, and
    none of them should know secrets. A process without a secret key stays as it is."""
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
# A key that is there is used again: what it sealed stays readable.
SWITCH_ON = """
INSERT INTO text_keys AS known (organization_id, sealed, is_used, created_at) VALUES ($1, $2, true, now())
ON CONFLICT (organization_id) DO UPDATE
   SET is_used = true, sealed = coalesce(known.sealed, excluded.sealed),
       created_at = CASE WHEN known.sealed IS NULL THEN excluded.created_at ELSE known.created_at END
"""
SWITCH_OFF = "UPDATE text_keys SET is_used = false WHERE organization_id = $1"


async def switch(conn: Connection, *, organization_id: UUID, on: bool, by: Who = SYSTEM) -> Sealed:
    """Seal an organization's new texts from now on, or no longer; every process knows within three seconds. What is
    stored stays as it is. Raises NotFound, and Invalid for a closed organization and without a secret key."""
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
    """Throw an organization's key away, for good; whether there was one. In the transaction that closes it."""
    return bool(await conn.fetchval(DESTROY, organization_id))


async def renew(conn: Connection, organization_id: UUID) -> None:
    """A new key for an organization that is no longer closed, if it seals texts. Raises Invalid."""
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
    """The keys in use, as a process that stores texts holds them. Costs whoever seals nothing one look at an empty
    dictionary."""

    def __init__(self) -> None:
        #: None: it cannot be opened here.
        self._keys: dict[UUID, Key | None] = {}
        self._refreshed_at = float("-inf")

    @classmethod
    async def of(cls, conn: Connection, organizations: Collection[UUID]) -> Sealing:
        """The keys that these organizations use now, for a transaction that stores texts of them."""
        made = cls()
        made._take(await conn.fetch(USED_BY, list(organizations)) if organizations else ())
        return made

    @property
    def age(self) -> float:
        """Seconds since the last `refresh` began."""
        return monotonic() - self._refreshed_at

    async def refresh(self, conn: Connection | Pool) -> None:
        """Take up what has changed, if that was not done within EVERY."""
        if self.age < EVERY:
            return
        at = monotonic()
        self._take(await conn.fetch(USED))
        self._refreshed_at = at

    def _take(self, rows: Iterable[Any]) -> None:
        self._keys = {row["organization_id"]: self._key(row["organization_id"], row["sealed"]) for row in rows}

    def _key(self, organization_id: UUID, sealed: bytes | None) -> Key | None:
        try:
            # Closed just now: nobody can read what is stored under a key that nobody keeps.
            return Key([os.urandom(BYTES)]) if sealed is None else _unsealed(organization_id, sealed)
        except Locked:
            log.error("the key of an organization's texts does not open", organization=str(organization_id))
            return self._keys.get(organization_id)

    def sealed(self, organization_id: UUID, table: str, id: UUID, text: str) -> str:
        """The text as it is to be stored in this row. Raises Unavailable if its key cannot be opened here."""
        if organization_id not in self._keys:
            return kept_open(text)
        return SEALED + base64.b64encode(self.sealed_octets(organization_id, table, id, text.encode())).decode()

    def sealed_octets(self, organization_id: UUID, table: str, id: UUID, octets: bytes) -> bytes:
        """The same of octets, whose row says that they are sealed; for an organization that seals its texts."""
        key = self._keys[organization_id]
        if key is None:
            raise Unavailable
        return seal(key, octets, f"{table}/{id}")

    def seals(self, organization_id: UUID) -> bool:
        """Whether its texts are sealed."""
        return organization_id in self._keys

    def is_locked(self, organization_id: UUID) -> bool:
        """Whether its texts are to be sealed and cannot be: its key does not open here."""
        return organization_id in self._keys and self._keys[organization_id] is None


class Opened(msgspec.Struct, frozen=True):
    """What texts say, in order; None: erased, or its key was thrown away. Those of `locked` are None as well, and are
    there: the key of these organizations does not open here, or its row is missing."""

    texts: list[str | None]
    locked: frozenset[UUID]


KEYS = "SELECT organization_id, sealed FROM text_keys WHERE organization_id = ANY ($1)"


async def read(conn: Connection, table: str, items: Sequence[Item]) -> Opened:
    """Open texts of a table, for whoever must not take a text that does not open for an erased one. One query, if any
    is sealed."""
    if not any(is_marked(item.text) for item in items):
        return Opened([item.text for item in items], frozenset())
    wanted = {item.organization_id for item in items if item.text is not None and item.text.startswith(SEALED)}
    keys, locked = await _keys(conn, wanted)
    return Opened([_opened(item, table, keys) for item in items], locked)


async def read_octets(
    conn: Connection, table: str, items: Sequence[tuple[UUID, UUID, bytes]]
) -> tuple[list[bytes | None], frozenset[UUID]]:
    """The same of what `Sealing.sealed_octets` made, as (organization, id, octets). Nothing stays nothing."""
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
    """The keys of these organizations, and those of them whose key does not open here or is missing."""
    rows = await conn.fetch(KEYS, list(wanted)) if wanted else ()
    stored: dict[UUID, bytes | None] = {row["organization_id"]: row["sealed"] for row in rows}
    keys: dict[UUID, Key] = {}
    locked = wanted - stored.keys()
    for id, sealed in stored.items():
        if sealed is None:
            continue  # thrown away
        try:
            keys[id] = _unsealed(id, sealed)
        except Locked:
            locked.add(id)
    for id in locked:
        log.error("the key of an organization's texts does not open", organization=str(id))
    return keys, frozenset(locked)


async def opens(conn: Connection, organization_id: UUID) -> bool:
    """Whether an organization's texts can be read here, as far as it has sealed any."""
    row = await conn.fetchrow(KEYS, [organization_id])
    return row is None or row["sealed"] is None or _opens(organization_id, row["sealed"])


def _opens(organization_id: UUID, sealed: bytes) -> bool:
    try:
        _unsealed(organization_id, sealed)
    except Locked:
        return False
    return True


async def opened(conn: Connection, table: str, items: Sequence[Item]) -> list[str | None]:
    """What texts of a table say, in order, for whoever shows them: one that cannot be read is None."""
    return (await read(conn, table, items)).texts


async def opened_of(
    conn: Connection, organization_id: UUID, table: str, texts: Iterable[tuple[UUID, str | None]]
) -> dict[UUID, str | None]:
    """The same for one organization, by the ids of the rows."""
    items = [Item(organization_id, id, text) for id, text in texts]
    return dict(zip((item.id for item in items), await opened(conn, table, items), strict=True))


class Standing(msgspec.Struct, frozen=True):
    """How the keys are: how many organizations have one, and the names of those whose texts wait for theirs."""

    keys: int
    #: It does not open with this process's secret key.
    locked: list[str]
    #: Messages that were sealed are waiting, and it is not there.
    missing: list[str]


ALL = """
SELECT k.organization_id, k.sealed, o.name FROM text_keys k JOIN organizations o ON o.id = k.organization_id
 WHERE k.sealed IS NOT NULL ORDER BY lower(o.name)
"""
#: Where texts are that wait in the queue, by the kind of its rows.
WAITING = {"sms": ("messages", "body"), "whatsapp": ("whatsapp_messages", "content")}
# Skips through the queue from organization to organization; of one without a key it reads some of what waits.
_MISSING = """
WITH RECURSIVE found (line, lane, organization_id) AS (
    (SELECT line, lane, organization_id FROM queue WHERE kind = '{kind}' ORDER BY line, lane, organization_id LIMIT 1)
    UNION ALL
    SELECT next.* FROM found CROSS JOIN LATERAL (
        SELECT line, lane, organization_id FROM queue
         WHERE kind = '{kind}' AND (line, lane, organization_id) > (found.line, found.lane, found.organization_id)
         ORDER BY line, lane, organization_id LIMIT 1) next
)
SELECT DISTINCT o.name FROM found JOIN organizations o ON o.id = found.organization_id
 WHERE NOT EXISTS (SELECT FROM text_keys k WHERE k.organization_id = found.organization_id)
   AND EXISTS (SELECT FROM (SELECT id FROM queue
                             WHERE kind = '{kind}' AND line = found.line AND lane = found.lane
                               AND organization_id = found.organization_id LIMIT 1000) waiting
                      CROSS JOIN LATERAL (SELECT {column} AS text FROM {table}
                                           WHERE organization_id = found.organization_id AND id = waiting.id
                                           LIMIT 1) m
                WHERE m.text LIKE '{sealed}%')
"""
MISSING = [
    _MISSING.format(kind=kind, table=table, column=column, sealed=SEALED) for kind, (table, column) in WAITING.items()
]


async def standing(conn: Connection) -> Standing:
    """How the keys of all organizations are."""
    rows = await conn.fetch(ALL)
    locked = [row["name"] for row in rows if not _opens(row["organization_id"], row["sealed"])]
    missing = {row["name"] for sql in MISSING for row in await conn.fetch(sql)}
    return Standing(len(rows), locked, sorted(missing))


def kept_open(text: str) -> str:
    """An open text as it is to be stored."""
    return OPEN + text if text.startswith(MARK) else text


def is_marked(text: str | None) -> bool:
    """Whether a stored text is not what it says, so that it has to go through `opened`."""
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
        # Of a key that was thrown away, altered, or of another row.
        return None


def _unsealed(organization_id: UUID, sealed: bytes) -> Key:
    if not _armed:
        raise Locked("this process has no secret key")
    try:
        return Key([unseal(_armed[0], sealed, context(organization_id))])
    except Unsealable as error:
        raise Locked(str(error)) from None
