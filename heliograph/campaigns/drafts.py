"""Drafts of campaigns: unsubmitted forms, stored as typed, for everybody who may create campaigns.

The rule nobody may break: numbers are stored in a separate column, in one spelling, so that erasing a person finds
them; a draft is not a campaign, and is never sent. An abandoned draft is erased after 30 days (`retention.rules`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.accounts import organizations
from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.campaigns import audience
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import Sealing

TABLE = "campaign_drafts"
#: Maximum drafts per organization and mode, and characters typed, not counting numbers.
MOST, LONGEST = 100, 100_000
#: Minutes after which somebody has probably left a draft.
RECENT = 10


class TooManyDrafts(Refusal):
    """There are 100 drafts of campaigns. Discard one that is no longer needed."""

    code, status = "too_many_campaign_drafts", 409


class Draft(msgspec.Struct, frozen=True):
    """A form as it was typed."""

    id: UUID
    #: Who saved it last.
    author: str
    fields: dict[str, str]
    numbers: list[str]
    saved_at: datetime


_COLUMNS = "id, author, fields, numbers, saved_at"
# Two people may edit the same draft: the last save wins, and says what it replaced. The same id in another organization
# or mode is another draft. The limit is about space, not money: two concurrent saves may exceed it by one.
SAVE = f"""
WITH before AS (
    SELECT author, saved_at FROM campaign_drafts
     WHERE organization_id = $1 AND mode = $2 AND id = $3 AND discarded_at IS NULL
       AND user_id IS DISTINCT FROM $7 AND saved_at > now() - interval '{RECENT} minutes'
)
INSERT INTO campaign_drafts AS known (organization_id, mode, id, author, fields, numbers, saved_at, user_id)
SELECT $1, $2, $3, $4, $5, $6, now(), $7
 WHERE EXISTS (SELECT FROM campaign_drafts WHERE organization_id = $1 AND mode = $2 AND id = $3)
    OR (SELECT count(*) FROM campaign_drafts
         WHERE organization_id = $1 AND mode = $2 AND discarded_at IS NULL) < {MOST}
    ON CONFLICT (organization_id, mode, id) DO UPDATE
   SET author = excluded.author, user_id = excluded.user_id, fields = excluded.fields, numbers = excluded.numbers,
       saved_at = excluded.saved_at, discarded_at = NULL
RETURNING (SELECT author FROM before), (SELECT saved_at FROM before)
"""


async def save(
    conn: Connection, actor: Actor, *, id: UUID, fields: Mapping[str, str], numbers: Sequence[str]
) -> tuple[str, datetime] | None:
    """Store a form under its id, replacing the previous one. `numbers`: as typed; unreadable ones are stored as their
    digits, with a + if they began with + or 00, or unchanged. Returns who else had saved it when in the last RECENT
    minutes: they may have it open, too.

    Raises Invalid for an impossible form, TooManyDrafts, and Unavailable.
    """
    if len(numbers) > audience.MAX_RECIPIENTS:
        raise Invalid(("numbers", "length", f"`numbers` must list at most {audience.MAX_RECIPIENTS} numbers"))
    if sum(map(len, fields.values())) > LONGEST or sum(map(len, numbers)) > LONGEST * 10:
        raise Invalid(("form", "length", f"a draft has at most {LONGEST} characters"))
    home = (await organizations.get(conn, id=actor.organization_id)).country if numbers else None
    read = await audience.at_home(numbers, home=home)
    spelled = list(dict.fromkeys(number or _unread(text) for text, number in read.items()))
    sealing = await Sealing.of(conn, [actor.organization_id])
    told = sealing.sealed(actor.organization_id, TABLE, id, msgspec.json.encode(fields).decode())
    who = actor.principal
    values = (actor.organization_id, actor.mode, id, who.name, told, spelled, who.id)
    row = await conn.fetchrow(SAVE, *values)
    if row is None:
        raise TooManyDrafts
    return None if row[0] is None else (row[0], row[1])


# Without numbers: the list shows none, and there may be a million.
LIST = f"""
SELECT id, author, fields, '{{}}'::text[] AS numbers, saved_at FROM campaign_drafts
 WHERE organization_id = $1 AND mode = $2 AND discarded_at IS NULL ORDER BY saved_at DESC LIMIT {MOST + 10}
"""
GET = f"""
SELECT {_COLUMNS} FROM campaign_drafts
 WHERE organization_id = $1 AND mode = $2 AND id = $3 AND discarded_at IS NULL
"""
# Retention deletes it an hour later.
DISCARD = """
UPDATE campaign_drafts SET discarded_at = now()
 WHERE organization_id = $1 AND mode = $2 AND id = $3 AND discarded_at IS NULL
"""
RESTORE = """
UPDATE campaign_drafts SET discarded_at = NULL
 WHERE organization_id = $1 AND mode = $2 AND id = $3 AND discarded_at IS NOT NULL RETURNING true
"""
END = "DELETE FROM campaign_drafts WHERE organization_id = $1 AND mode = $2 AND id = $3"


async def list_all(conn: Connection, actor: Actor) -> list[Draft]:
    """The organization's drafts without their numbers, most recently saved first."""
    rows = await conn.fetch(LIST, actor.organization_id, actor.mode)
    told = await text_keys.opened_of(conn, actor.organization_id, TABLE, [(row["id"], row["fields"]) for row in rows])
    # A draft whose key was destroyed appears as an empty form.
    return [_draft(row, told[row["id"]] or "{}") for row in rows]


async def get(conn: Connection, actor: Actor, *, id: UUID) -> Draft:
    """One draft. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, actor.mode, id)
    if row is None:
        raise NotFound("There is no such draft.", resource="campaign_draft", id=str(id))
    told = await text_keys.opened_of(conn, actor.organization_id, TABLE, [(id, row["fields"])])
    return _draft(row, told[id] or "{}")


async def discard(conn: Connection, actor: Actor, *, id: UUID) -> None:
    """Discard a draft; can be undone until it is erased. Idempotent."""
    await conn.execute(DISCARD, actor.organization_id, actor.mode, id)


async def restore(conn: Connection, actor: Actor, *, id: UUID) -> None:
    """Undo discarding a draft. Raises NotFound if that was already undone, or the draft is erased."""
    if not await conn.fetchval(RESTORE, actor.organization_id, actor.mode, id):
        raise NotFound("This can no longer be undone.", resource="campaign_draft", id=str(id))


async def end(conn: Connection, actor: Actor, *, id: UUID) -> None:
    """Delete a draft from which a campaign was created. Idempotent."""
    await conn.execute(END, actor.organization_id, actor.mode, id)


def _unread(text: str) -> str:
    """The stored spelling of an invalid number. A foreign number that lacks a digit keeps its +: without it, it would
    be read as a different, domestic number when the form is opened again."""
    digits = phones.digits(text)
    if digits and phones.is_international(text):
        return "+" + (digits if "+" in text else digits.removeprefix("00"))
    return digits or text


def _draft(row: asyncpg.Record, told: str) -> Draft:
    fields = msgspec.json.decode(told, type=dict[str, str])
    return Draft(row["id"], row["author"], fields, row["numbers"], row["saved_at"])
