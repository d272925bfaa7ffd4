"""Campaigns as their organization sees them: create, list, get, cancel; and the states they go through.

    scheduled → staging → running ⇄ paused
                  any of these → canceled | failed          running → completed

`staging`: the audience is gathered. `running`: its messages are staged and sent. `paused`: the quota does not cover
the next message, or the organization is suspended; it goes on by itself. `completed`: nothing is left to do.

The rule nobody may break: a state changes in one place, `move`, whose guard stands in the UPDATE.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.actor import Actor
from heliograph.base.clock import iso
from heliograph.base.db import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7
from heliograph.campaigns import audience, template
from heliograph.sms import sender_ids
from heliograph.webhooks import events

MAX_NAME = 200
MAX_AHEAD = timedelta(days=365)
MAX_PAST = timedelta(seconds=60)
#: Most messages a minute that pacing can tell from none: one each 0.06 ms.
MAX_PACE = 1_000_000

#: Each state, and those it is reached from.
STATES: dict[str, tuple[str, ...]] = {
    "scheduled": (),
    "staging": ("scheduled",),
    "running": ("staging", "paused"),
    "paused": ("running", "paused"),
    "completed": ("running",),
    "canceled": ("scheduled", "staging", "running", "paused"),
    "failed": ("scheduled", "staging", "running", "paused"),
}
#: Why a campaign is paused, or has failed.
QUOTA, SUSPENDED, SENDER = "quota_exceeded", "organization_suspended", "sender_id_not_approved"


class CampaignAudienceEmpty(Refusal):
    """Nobody would get this campaign: no recipient is left once opted-out and invalid numbers are taken away."""

    code, status = "campaign_audience_empty", 409


class CampaignNotCancelable(Refusal):
    """This campaign has ended."""

    code, status = "campaign_not_cancelable", 409


class Anew(Exception):
    """What a step was decided on has changed meanwhile. The step is undone, and decided again."""


class Counts(msgspec.Struct, frozen=True):
    """Recipients by what became of them: disjoint, and `total` is the sum of the others."""

    total: int
    #: Not staged yet.
    pending: int
    #: Staged, and no supplier has it yet.
    queued: int
    sent: int
    delivered: int
    failed: int
    #: Sent, and nothing was heard of it within the receipt deadline.
    unknown: int
    canceled: int
    opted_out: int
    #: A number that is none or may not be sent to, or a text that is too long with this recipient's values.
    invalid: int


class Campaign(msgspec.Struct, frozen=True, kw_only=True):
    """One campaign as its organization sees it."""

    id: UUID
    name: str
    status: str
    status_reason: str | None
    message_template: str
    sender_id: UUID
    #: None: the recipients were listed.
    audience_tags: list[str] | None
    audience_tag_match_mode: str
    messages_per_minute: int | None
    scheduled_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    created_at: datetime
    counts: Counts


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign is to be. Lengths and types were checked at the door; everything else is checked here."""

    name: str
    message_template: str
    sender_id: UUID | None = None
    sender_name: str | None = None
    scheduled_at: datetime | None = None
    #: Either tags or recipients.
    audience_tags: Sequence[str] | None = None
    audience_tag_match_mode: str = "any"
    recipients: Sequence[str] | None = None
    messages_per_minute: int | None = None


COUNTS = ", ".join(Counts.__struct_fields__)
COLUMNS = ", ".join(name for name in Campaign.__struct_fields__ if name != "counts") + ", " + COUNTS

INSERT = f"""
INSERT INTO campaigns (organization_id, id, name, status, mode, message_template, sender_id, audience_tags,
                       audience_tag_match_mode, messages_per_minute, request_id, scheduled_at, started_at, step_at,
                       created_at, total, pending, invalid)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
RETURNING {COLUMNS}
"""
SMART = "SELECT smart_encoding, now() AS at FROM organizations WHERE id = $1"


async def create(conn: Connection, actor: Actor, *, wish: Wish, request_id: str) -> Campaign:
    """Make a campaign; a worker starts it within a second of its time. Runs in the caller's transaction.

    Raises Invalid (text, time, tags, recipients, an unknown sender), SenderIdNotApproved, and CampaignAudienceEmpty
    for one that is to start at once and has nobody.
    """
    row = await conn.fetchrow(SMART, actor.organization_id)
    if row is None:
        raise NotFound(resource="organization", id=str(actor.organization_id))
    at: datetime = row["at"]
    name = wish.name.strip()
    if not 1 <= len(name) <= MAX_NAME:
        raise Invalid(("name", "length", f"`name` must have 1 to {MAX_NAME} characters"))
    template.check(wish.message_template, "message_template", smart=row["smart_encoding"])
    scheduled_at = _scheduled(wish.scheduled_at, at)
    listed, tags = audience.named(wish.recipients, wish.audience_tags)
    found = await audience.numbers(listed) if listed is not None else None
    sender = await sender_ids.resolve(conn, actor, sender_id=wish.sender_id, sender_name=wish.sender_name)
    starts = scheduled_at is None or scheduled_at <= at
    if starts and not await audience.anybody(
        conn, actor, tags=tags, match_mode=wish.audience_tag_match_mode, numbers=None if found is None else found.valid
    ):
        raise CampaignAudienceEmpty
    id = uuid7()
    pending, invalid = (len(found.valid), found.invalid) if found else (0, 0)
    row = await conn.fetchrow(
        INSERT,
        actor.organization_id,
        id,
        name,
        "staging" if starts else "scheduled",
        actor.mode,
        wish.message_template,
        sender.id,
        tags,
        wish.audience_tag_match_mode,
        wish.messages_per_minute,
        request_id,
        scheduled_at,
        at if starts else None,
        at if starts else scheduled_at,
        at,
        pending + invalid,
        pending,
        invalid,
    )
    assert row is not None
    if found:
        await audience.keep(conn, actor.organization_id, id, found.valid)
    return campaign(row)


LIST = f"""
SELECT {COLUMNS} FROM campaigns WHERE organization_id = $1 AND id < $2 ORDER BY id DESC LIMIT $3
"""
_LAST = UUID(int=2**128 - 1)


async def list_page(conn: Connection, actor: Actor, *, after: UUID | None, limit: int) -> list[Campaign]:
    """Up to `limit` campaigns, newest first, older than `after`."""
    return [campaign(row) for row in await conn.fetch(LIST, actor.organization_id, after or _LAST, limit)]


GET = f"SELECT {COLUMNS} FROM campaigns WHERE organization_id = $1 AND id = $2"


async def get(conn: Connection, actor: Actor, *, id: UUID) -> Campaign:
    """The campaign. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, id)
    if row is None:
        raise NotFound(resource="campaign", id=str(id))
    return campaign(row)


def guard(status: str) -> str:
    """That a campaign may move to `status`, as an SQL condition."""
    return f"status IN ({', '.join(repr(name) for name in STATES[status])})"


#: The guarded change of state. What is pending when a campaign is canceled or fails will never be sent.
MOVES = {
    status: f"""
UPDATE campaigns SET status = '{status}', status_reason = $3,
       started_at = CASE WHEN '{status}' = 'staging' THEN coalesce(started_at, now()) ELSE started_at END,
       completed_at = CASE WHEN '{status}' = 'completed' THEN now() END,
       canceled = canceled + CASE WHEN '{status}' IN ('canceled', 'failed') THEN pending ELSE 0 END,
       pending = CASE WHEN '{status}' IN ('canceled', 'failed') THEN 0 ELSE pending END,
       step_at = CASE WHEN '{status}' = 'completed' THEN NULL ELSE clock_timestamp() END
 WHERE organization_id = $1 AND id = $2 AND {guard(status)}
RETURNING {COLUMNS}, organization_id, request_id, completed_at AS at
"""
    for status, sources in STATES.items()
    if sources
}


async def move(
    conn: Connection, organization_id: UUID, id: UUID, status: str, *, reason: str | None = None
) -> Campaign | None:
    """Bring a campaign to `status` if the table above allows it from where it is; None: it does not.

    Records `campaign.completed`. Runs in the caller's transaction.
    """
    row = await conn.fetchrow(MOVES[status], organization_id, id, reason)
    if row is None:
        return None
    moved = campaign(row)
    if status == "completed":
        await events.record(conn, [_completed(moved, row)])
    return moved


async def cancel(conn: Connection, actor: Actor, *, id: UUID) -> Campaign:
    """End a campaign; a second time changes nothing. Runs in the caller's transaction.

    Nothing more is staged from now on; a worker withdraws what is staged and not sent, and gives back its quota.
    Raises NotFound, and CampaignNotCancelable for one that has completed or failed.
    """
    moved = await move(conn, actor.organization_id, id, "canceled")
    if moved is not None:
        return moved
    found = await get(conn, actor, id=id)
    if found.status != "canceled":
        raise CampaignNotCancelable(id=str(id), status=found.status)
    return found


def campaign(row: asyncpg.Record) -> Campaign:
    """The record of a row that has COLUMNS."""
    values = {name: row[name] for name in Campaign.__struct_fields__ if name != "counts"}
    return Campaign(**values, counts=Counts(*(row[name] for name in Counts.__struct_fields__)))


def shown(one: Campaign) -> dict[str, object]:
    """The record as answers and events show it."""
    values: dict[str, object] = {}
    for name in Campaign.__struct_fields__:
        value = getattr(one, name)
        if isinstance(value, datetime):
            value = iso(value)
        elif isinstance(value, UUID):
            value = str(value)
        elif isinstance(value, Counts):
            value = msgspec.structs.asdict(value)
        values[name] = value
    # Until the audience was gathered, nobody knows how many they are.
    known = one.audience_tags is None or one.status not in ("scheduled", "staging")
    values["recipient_count"] = one.counts.total if known else None
    return values


def _completed(one: Campaign, row: asyncpg.Record) -> events.Event:
    return events.Event(
        organization_id=row["organization_id"],
        id=uuid7(),
        kind="campaign.completed",
        request_id=row["request_id"],
        data=msgspec.json.encode({"campaign": shown(one)}).decode(),
        created_at=row["at"],
    )


def _scheduled(asked: datetime | None, at: datetime) -> datetime | None:
    if asked is not None and not at - MAX_PAST <= asked <= at + MAX_AHEAD:
        raise Invalid(("scheduled_at", "range", "`scheduled_at` must be between 60 seconds ago and 365 days ahead"))
    return asked
