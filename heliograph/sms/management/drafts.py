"""Drafts of suppliers: what has been typed so far, step by step, and the results of trying it.

A draft is stored in a table of its own, so nothing that carries messages ever sees it; finishing it adds the supplier.
The rule nobody may break: its password is sealed like a supplier's, and the number of a test is stored masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import naming, phones
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key, Unsealable, seal, unseal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.base.ids import uuid7
from heliograph.base.sentences import decoded, encoded
from heliograph.sms.dispatch import suppliers
from heliograph.sms.management import options
from heliograph.sms.management.following import Followed
from heliograph.suppliers import kinds
from heliograph.suppliers.probing import Step

#: What is wrong with a name, by issue.
WRONG_NAME = {
    "length": "A name must have 1 to 200 characters.",
    "pattern": "A name must not contain control characters.",
}
#: Maximum number of drafts, and days for which an untouched one is kept.
MOST, DAYS = 50, 30
#: Initial values of a supplier's columns.
PLACE: Mapping[str, Any] = {
    "prefixes": (),
    "priority": 10,
    "weight": 1,
    "sessions": 1,
    "parts": "all",
    "simulated": False,
}


class Trial(msgspec.Struct, frozen=True):
    """A test message. `to`: masked. `until`: when it will have ended at the latest."""

    to: str
    until: datetime
    followed: Followed
    #: Whether it has several parts; and how it arrived on the handset, as reported by a person: "joined", "apart",
    #: "cut", or "" until then.
    is_long: bool = False
    arrived: str = ""


def long_ended(one: Trial | None) -> Trial | None:
    """A long message, once it is no longer followed and the supplier has accepted it; otherwise None."""
    if one is None or not one.is_long or one.followed.phase != "done" or one.followed.verdict != "accepted":
        return None
    return one


def with_ids_fixed(one: Trial) -> Trial:
    """A test message after the settings that fix its ids have been applied."""
    fitting = tuple(msgspec.structs.replace(receipt, fits=True) for receipt in one.followed.receipts)
    return msgspec.structs.replace(one, followed=msgspec.structs.replace(one.followed, receipts=fitting, cure={}))


class Draft(msgspec.Struct, frozen=True):
    """A draft."""

    id: UUID
    name: str
    kind: str
    settings: dict[str, Any]
    #: Sealed; empty: none has been given yet.
    secret: bytes
    place: dict[str, Any]
    #: The results of the last connection test.
    steps: list[Step]
    trial: Trial | None
    changed_at: datetime

    @property
    def is_complete(self) -> bool:
        """True if it has everything that a supplier needs."""
        try:
            options.check(self.kind, self.settings)
        except Invalid:
            return False
        return bool(self.secret)


COLUMNS = "id, name, kind, settings::text, secret, place::text, steps::text, trial::text, changed_at"
FORGET = f"DELETE FROM supplier_drafts WHERE changed_at < now() - interval '{DAYS} days'"
COUNT = "SELECT count(*) FROM supplier_drafts"
INSERT = """
INSERT INTO supplier_drafts (id, name, kind, settings, place, changed_at)
VALUES ($1, $2, $3, '{}', $4::text::jsonb, now())
"""


async def begin(conn: Connection, *, name: str, kind: str) -> UUID:
    """Begin a draft; deletes those untouched for DAYS. Raises Invalid (name, kind)."""
    wrong = Problems()
    with wrong.gathering():
        name = naming.checked(name, "name", longest=suppliers.LONGEST_NAME, said=WRONG_NAME)
    if kind not in kinds.SETTINGS:
        wrong.add("kind", "enum", "Choose one of these kinds.")
    wrong.report()
    async with conn.transaction():
        await conn.execute(FORGET)
        if await conn.fetchval(COUNT) >= MOST:
            raise Invalid(("name", "several", "There are too many unfinished suppliers. Discard some."))
        id = uuid7()
        await conn.execute(INSERT, id, name, kind, msgspec.json.encode(PLACE).decode())
    return id


LIST = f"SELECT {COLUMNS} FROM supplier_drafts ORDER BY changed_at DESC LIMIT {MOST}"
ONE = f"SELECT {COLUMNS} FROM supplier_drafts WHERE id = $1"


async def list_all(conn: Connection) -> list[Draft]:
    """All drafts, most recently touched first."""
    return [_draft(row) for row in await conn.fetch(LIST)]


async def get(conn: Connection, id: UUID) -> Draft:
    """One draft. Raises NotFound."""
    row = await conn.fetchrow(ONE, id)
    if row is None:
        raise NotFound(resource="supplier draft", id=str(id))
    return _draft(row)


SAVE = """
UPDATE supplier_drafts SET name = $2, settings = $3::text::jsonb, place = $4::text::jsonb,
       secret = coalesce($5, secret), changed_at = now()
 WHERE id = $1
"""


async def save(conn: Connection, key: Key, draft: Draft, *, secret: str | None = None) -> None:
    """Save what was typed. `secret`: a new one; None: unchanged."""
    await conn.execute(
        SAVE,
        draft.id,
        draft.name,
        msgspec.json.encode(draft.settings).decode(),
        msgspec.json.encode(draft.place).decode(),
        None if secret is None else seal(key, secret.encode(), context(draft.id)),
    )


# Nothing, if its connection was changed during the test.
FOUND = """
UPDATE supplier_drafts SET steps = $2::text::jsonb, changed_at = now()
 WHERE id = $1 AND settings = $3::text::jsonb AND secret = $4
"""
STARTED = "UPDATE supplier_drafts SET trial = $2::text::jsonb, changed_at = now() WHERE id = $1"
# Nothing, if it was forgotten meanwhile. Their ends tell test messages apart.
FOLLOWED = f"{STARTED} AND trial -> 'until' = $2::text::jsonb -> 'until'"
FORGET_TRIAL = "UPDATE supplier_drafts SET trial = NULL, changed_at = now() WHERE id = $1"
FORGET_TESTS = "UPDATE supplier_drafts SET steps = DEFAULT, trial = NULL, changed_at = now() WHERE id = $1"
ENDS = "SELECT now() + make_interval(secs => $1)"


async def keep_steps(conn: Connection, draft: Draft, steps: list[Step]) -> None:
    """Save the results of testing this draft's connection, unless it has been changed since."""
    settings = msgspec.json.encode(draft.settings).decode()
    await conn.execute(FOUND, draft.id, encoded(steps), settings, draft.secret)


async def forget_trial(conn: Connection, id: UUID) -> None:
    """Forget its last test message, which was sent with other settings."""
    await conn.execute(FORGET_TRIAL, id)


async def forget_tests(conn: Connection, id: UUID) -> None:
    """Forget the results of testing its previous connection, and the message that was sent over it."""
    await conn.execute(FORGET_TESTS, id)


async def start_trial(conn: Connection, id: UUID, one: Trial) -> None:
    """Save that a test message is sent, in the transaction that holds the draft."""
    await conn.execute(STARTED, id, encoded(one))


async def keep_trial(conn: Connection, id: UUID, one: Trial) -> None:
    """Save the progress of a test message, unless it is no longer the last one."""
    await conn.execute(FOLLOWED, id, encoded(one))


async def ends(conn: Connection, seconds: float) -> datetime:
    """The database's time plus this many seconds."""
    at: datetime = await conn.fetchval(ENDS, seconds)
    return at


def open_secret(key: Key, draft: Draft, *, field: str) -> str:
    """Its password. Raises Invalid (names the field) if it was sealed with another secret key."""
    known = opened(key, draft)
    if known is None:
        raise Invalid((field, "sealed", "Its password was sealed with another secret key. Replace it."))
    return known


def opened(key: Key, draft: Draft) -> str | None:
    """Its password; None: none has been given yet, or it was sealed with another secret key."""
    try:
        return unseal(key, draft.secret, context(draft.id)).decode() if draft.secret else None
    except Unsealable:
        return None


def context(id: UUID) -> str:
    """The context with which its password is sealed."""
    return f"supplier_drafts/{id}"


def masked(number: str) -> str:
    """A test's number in the masked form that is stored."""
    return phones.masked(number)


DROP = "DELETE FROM supplier_drafts WHERE id = $1"
LOCK = f"SELECT {COLUMNS} FROM supplier_drafts WHERE id = $1 FOR UPDATE"


async def lock(conn: Connection, id: UUID) -> Draft:
    """One draft, which nobody else changes before the caller's transaction ends. Raises NotFound."""
    row = await conn.fetchrow(LOCK, id)
    if row is None:
        raise NotFound(resource="supplier draft", id=str(id))
    return _draft(row)


async def drop(conn: Connection, id: UUID) -> None:
    """Discard a draft."""
    await conn.execute(DROP, id)


async def finish(conn: Connection, key: Key, id: UUID, *, by: Principal = SYSTEM) -> UUID:
    """Turn a draft into a supplier of the same id, which carries messages from now on. Raises NotFound, Invalid (names
    the setting), SupplierExists."""
    async with conn.transaction():
        draft = await lock(conn, id)
        options.check(draft.kind, draft.settings)
        if not draft.secret:
            raise Invalid(("secret", "required", "The connection needs its password."))
        made = await suppliers.add(
            conn,
            key,
            name=draft.name,
            kind=draft.kind,
            settings=draft.settings,
            secret=open_secret(key, draft, field="secret"),
            id=id,
            by=by,
            **draft.place | {"prefixes": tuple(draft.place["prefixes"])},
        )
        await drop(conn, id)
    return made


def _draft(row: asyncpg.Record) -> Draft:
    values = dict(row.items())
    return Draft(
        **values
        | {
            "settings": msgspec.json.decode(values["settings"]),
            "place": dict(PLACE) | msgspec.json.decode(values["place"]),
            "steps": decoded(values["steps"], list[Step]),
            "trial": None if values["trial"] is None else decoded(values["trial"], Trial),
        }
    )
