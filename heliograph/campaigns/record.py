"""A campaign as its organization sees it, and the queries that find campaigns: by id, by channel, by tag.

The rule nobody may break: stored values are listed in COLUMNS, and values derived from the counts are added in
`_campaign` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.campaigns import standstill
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import Item

#: Reason of a running campaign that has sent everything: it waits for the last receipts or statuses.
WAITING = "waiting_for_receipts"


class Counts(msgspec.Struct, frozen=True):
    """Recipients by outcome: disjoint, and `total` is the sum of the others."""

    total: int
    #: Not staged yet.
    pending: int
    #: Staged, but no supplier has it yet.
    queued: int
    sent: int
    #: Not including those read, if the channel can tell.
    delivered: int
    read: int
    failed: int
    #: Sent, but no receipt came by the deadline.
    unknown: int
    canceled: int
    opted_out: int
    #: Messaged within the campaign's `not_written_days`, or about to be by another campaign.
    recently_written: int
    #: Invalid or forbidden numbers, and values that do not fit the text or template.
    invalid: int

    @property
    def reached(self) -> int:
        """Recipients who got it, whether or not they read it."""
        return self.delivered + self.read

    @property
    def missed(self) -> int:
        """Recipients who, as far as is known, did not get it: it failed, or no receipt came by the deadline."""
        return self.failed + self.unknown

    @property
    def on_way(self) -> int:
        """Recipients whose message is staged and has no final status."""
        return self.queued + self.sent

    @property
    def skipped(self) -> int:
        """Recipients for whom nothing was staged."""
        return self.opted_out + self.recently_written + self.invalid


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """One campaign as its organization sees it."""

    id: UUID
    channel: str
    name: str
    status: str
    status_reason: str | None
    #: Its content: the fields of CONTENT that its channel has.
    content: dict[str, Any]
    #: Tags, or the import whose contacts get it; both None: recipients were listed.
    audience_tags: list[str] | None
    audience_import: UUID | None
    audience_tag_match_mode: str
    #: Contacts with any of these tags are excluded.
    excluded_tags: list[str]
    #: Contacts messaged within this many days are skipped.
    not_written_days: int | None
    messages_per_minute: int | None
    scheduled_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    #: Since when nothing has been waiting to be sent: all of its messages were accepted before.
    drained_at: datetime | None
    #: When a second person approved it, if that is required.
    approved_at: datetime | None
    created_at: datetime
    #: Of the failed ones, those whose message no supplier can have, not even in part: refused, expired, never taken.
    never_sent: int
    counts: Counts

    @property
    def is_gathered(self) -> bool:
        """True if its recipients are gathered at its start, not listed."""
        return self.audience_tags is not None or self.audience_import is not None


class CampaignName(msgspec.Struct, frozen=True):
    """A campaign, for finding it by name."""

    id: UUID
    name: str
    created_at: datetime


#: Campaigns, newest first, searched for a name: names have no index.
LOOKED = 500
#: The table name used in the seals of texts.
TABLE = "campaigns"
#: Columns of campaigns' content; those that a channel does not use are NULL.
CONTENT = (
    "message_template",
    "class",
    "sender_id",
    "number_id",
    "template_id",
    "template_name",
    "template_language",
    "parameters",
)
#: Not shown: a field that may be longer than an event, and fields for internal use only.
NOT_SHOWN = frozenset({"parameters", "drained_at", "never_sent"})
#: Outcomes that a channel does not have.
NOT_COUNTED = {"sms": "read", "whatsapp": "unknown"}
COUNTS = ", ".join(Counts.__struct_fields__)
COLUMNS = ", ".join(
    [*(name for name in Campaign.__struct_fields__ if name not in ("content", "counts")), *CONTENT, COUNTS]
)


_MADE = "($6::timestamptz IS NULL OR created_at >= $6) AND ($7::timestamptz IS NULL OR created_at < $7)"
LIST = f"""
SELECT {COLUMNS}, {standstill.WHY} AS stands FROM campaigns
 WHERE organization_id = $1 AND channel = $2 AND id < $3 AND id >= $4 AND {_MADE} AND mode = $8
 ORDER BY id DESC LIMIT $5
"""
LIST_BOTH = f"""
SELECT {COLUMNS}, {standstill.WHY} AS stands FROM campaigns
 WHERE organization_id = $1 AND channel = $2 AND id < $3 AND id >= $4 AND {_MADE} ORDER BY id DESC LIMIT $5
"""


async def list_page(
    conn: Connection,
    actor: Actor,
    *,
    after: UUID | None,
    limit: int,
    channel: str = "sms",
    date_from: datetime | None = None,
    date_to: datetime | None = None,
) -> list[Campaign]:
    """Up to `limit` campaigns of a channel, newest first, older than `after`, created in [date_from, date_to)."""
    bounds = bounded_scan.bounds(after, date_from=date_from, date_to=date_to)
    values = (actor.organization_id, channel, *bounds, limit, date_from, date_to)
    both = len(actor.modes) > 1
    rows = await (conn.fetch(LIST_BOTH, *values) if both else conn.fetch(LIST, *values, actor.mode))
    return await read(conn, actor.organization_id, rows)


LIST_UNDER_WAY = f"""
SELECT {COLUMNS}, {standstill.WHY} AS stands FROM campaigns
 WHERE organization_id = $1 AND mode = $2 AND status IN ('staging', 'running', 'paused') AND channel = $3
   AND ($4::timestamptz IS NULL OR created_at >= $4) AND ($5::timestamptz IS NULL OR created_at < $5)
 ORDER BY id DESC LIMIT $6
"""


async def under_way(
    conn: Connection,
    actor: Actor,
    *,
    channel: str,
    date_from: datetime | None = None,
    date_to: datetime | None = None,
    limit: int,
) -> list[Campaign]:
    """Campaigns of a channel that have begun but not ended, including paused ones, newest first."""
    rows = await conn.fetch(LIST_UNDER_WAY, actor.organization_id, actor.mode, channel, date_from, date_to, limit)
    return await read(conn, actor.organization_id, rows)


LIST_EVERYWHERE = f"""
SELECT organization_id, (SELECT name FROM organizations WHERE id = organization_id) AS organization, {COLUMNS},
       {standstill.WHY} AS stands FROM campaigns
 WHERE ($1::uuid IS NULL OR organization_id = $1) AND channel = $2 ORDER BY id DESC LIMIT $3
"""


async def list_everywhere(
    conn: Connection, *, organization_id: UUID | None, channel: str = "sms", limit: int
) -> list[tuple[str, Campaign]]:
    """For operators: (organization's name, campaign), newest first, of one organization or all (None)."""
    rows = await conn.fetch(LIST_EVERYWHERE, organization_id, channel, limit)
    items = [Item(row["organization_id"], row["id"], row["message_template"]) for row in rows]
    texts = await text_keys.opened(conn, TABLE, items)
    return [(row["organization"], _campaign(row, text)) for row, text in zip(rows, texts, strict=True)]


GET = f"""
SELECT {COLUMNS}, {standstill.WHY} AS stands FROM campaigns
 WHERE organization_id = $1 AND channel = $2 AND id = $3 AND mode = ANY ($4)
"""


async def get(conn: Connection, actor: Actor, *, id: UUID, channel: str = "sms") -> Campaign:
    """The campaign of a channel. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, channel, id, actor.modes)
    if row is None:
        raise NotFound("There is no such campaign.", resource="campaign", id=str(id))
    (found,) = await read(conn, actor.organization_id, [row])
    return found


NAMES = "SELECT id, name FROM campaigns WHERE organization_id = $1 AND id = ANY ($2) AND mode = ANY ($3)"


async def names(conn: Connection, actor: Actor, *, ids: Sequence[UUID]) -> dict[UUID, str]:
    """Names of campaigns by id, in the order given, of those visible to the actor."""
    rows = {row["id"]: row["name"] for row in await conn.fetch(NAMES, actor.organization_id, list(ids), actor.modes)}
    return {id: rows[id] for id in ids if id in rows}


LATEST = """
SELECT id, name, created_at FROM campaigns WHERE organization_id = $1 AND mode = $2 ORDER BY id DESC LIMIT $3
"""


async def latest(conn: Connection, actor: Actor, *, limit: int = LOOKED) -> list[CampaignName]:
    """The newest campaigns of the actor's mode, of both channels, by name."""
    return [CampaignName(*row) for row in await conn.fetch(LATEST, actor.organization_id, actor.mode, limit)]


# Uses the index `campaigns_under_way`, which is small.
PAUSED = """
SELECT count(*) FROM (
       SELECT FROM campaigns
        WHERE organization_id = $1 AND mode = $2 AND status = 'paused' AND channel IS NOT NULL LIMIT $3) few
"""


async def paused(conn: Connection, actor: Actor, *, most: int) -> int:
    """How many campaigns in the actor's mode are paused, counted up to `most`."""
    found: int = await conn.fetchval(PAUSED, actor.organization_id, actor.mode, most)
    return found


WAITING_FOR_TAG = """
SELECT name FROM campaigns
 WHERE organization_id = $1 AND channel IS NOT NULL AND mode = $2 AND step_at IS NOT NULL
   AND status IN ('scheduled', 'staging') AND ($3 = ANY (audience_tags) OR $3 = ANY (excluded_tags))
 ORDER BY scheduled_at LIMIT 20
"""


async def waiting_for_tag(conn: Connection, actor: Actor, *, tag: str) -> list[str]:
    """Names of campaigns that have yet to gather contacts with a tag, or without it."""
    rows = await conn.fetch(WAITING_FOR_TAG, actor.organization_id, actor.mode, tag)
    return [row["name"] for row in rows]


WAITING_FOR_IMPORT = """
SELECT name FROM campaigns
 WHERE organization_id = $1 AND channel IS NOT NULL AND mode = $2 AND step_at IS NOT NULL
   AND status IN ('scheduled', 'staging') AND audience_import = $3
 ORDER BY scheduled_at LIMIT 20
"""


async def waiting_for_import(conn: Connection, actor: Actor, *, imported: UUID) -> list[str]:
    """Names of campaigns that have yet to gather the people of an import."""
    return [row["name"] for row in await conn.fetch(WAITING_FOR_IMPORT, actor.organization_id, actor.mode, imported)]


async def read(conn: Connection, organization_id: UUID, rows: Sequence[asyncpg.Record]) -> list[Campaign]:
    """Campaigns from an organization's rows that have COLUMNS."""
    stored = [(row["id"], row["message_template"]) for row in rows]
    texts = await text_keys.opened_of(conn, organization_id, TABLE, stored)
    return [_campaign(row, texts[row["id"]]) for row in rows]


def _campaign(row: asyncpg.Record, text: str | None) -> Campaign:
    """A campaign from its row. `text`: its template, opened; None if its key is gone."""
    values = {name: row[name] for name in Campaign.__struct_fields__ if name not in ("content", "counts")}
    content = {name: row[name] for name in CONTENT if row[name] is not None}
    if "message_template" in content:
        content["message_template"] = text or ""
    counts = Counts(*(row[name] for name in Counts.__struct_fields__))
    # Not stored, but derived from the counts.
    if values["status"] == "running" and counts.pending == counts.queued == 0 and counts.sent:
        values["status_reason"] = WAITING
    elif values["status"] == "running" and values["status_reason"] is None:
        values["status_reason"] = row.get("stands")
    return Campaign(**values, content=content, counts=counts)


def shown(one: Campaign) -> dict[str, object]:
    """The campaign as shown in events, commands, and responses for SMS."""
    values: dict[str, object] = {}
    for name in Campaign.__struct_fields__:
        value = getattr(one, name)
        if name in NOT_SHOWN:
            continue
        if name == "content":
            values.update({key: _plain(part) for key, part in value.items() if key not in NOT_SHOWN})
        elif name == "counts":
            counts = msgspec.structs.asdict(value)
            del counts[NOT_COUNTED[one.channel]]
            values[name] = counts
        else:
            values[name] = _plain(value)
    # Unknown until the audience has been gathered.
    known = not one.is_gathered or one.status not in ("scheduled", "staging")
    values["recipient_count"] = one.counts.total if known else None
    return values


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return iso(value)
    return str(value) if isinstance(value, UUID) else value
