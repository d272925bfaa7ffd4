"""Campaigns: begin, pause, resume, cancel; and their states. The record of a campaign is in `record`.

    scheduled → staging → running ⇄ paused
                  any of these → canceled | failed          running → completed

`staging`: the audience is gathered. `running`: its messages are staged and sent. `paused`: quota or wallet does not
cover the next message, the organization is suspended, or the channel cannot send now; it resumes by itself, unless
somebody paused it, or a second person has to approve it (`approval`).
`completed`: nothing is left to do. A campaign's content and its creation belong to its channel.

It has over 400 lines because the functions that move a campaign are next to the table of its states.

The rule nobody may break: a state changes in one place, `move`, whose guard is in the UPDATE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import asyncpg
import msgspec

from heliograph import notices
from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import SYSTEM, Actor, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Problems, Refusal
from heliograph.base.ids import uuid7
from heliograph.campaigns import audience
from heliograph.campaigns.approval import rule
from heliograph.campaigns.approval.rule import CampaignApprovalRequired
from heliograph.campaigns.record import COLUMNS, CONTENT, TABLE, Campaign, get, read, shown
from heliograph.consent import skipped
from heliograph.contacts.imports import drafts
from heliograph.notices import Notice
from heliograph.sealing.text_keys import Sealing
from heliograph.webhooks.recording import events

MAX_NAME = 200
MAX_AHEAD = timedelta(days=365)
MAX_PAST = timedelta(seconds=60)
#: How far ahead a paced campaign is staged: so that the queue's order, not a worker's turn, decides when a message is
#: sent.
LEAD = timedelta(seconds=20)
#: The fastest pace that differs from none, in messages per minute: one every 0.06 ms.
MAX_PACE = 1_000_000

#: Each state, and those from which it is reached.
STATES: dict[str, tuple[str, ...]] = {
    "scheduled": (),
    "staging": ("scheduled",),
    "running": ("staging", "paused"),
    "paused": ("staging", "running", "paused"),
    "completed": ("running",),
    "canceled": ("scheduled", "staging", "running", "paused"),
    "failed": ("scheduled", "staging", "running", "paused"),
}
#: States of campaigns that have not ended.
UNDER_WAY = STATES["canceled"]
#: Actions on a campaign.
Action = Literal["pause", "resume", "pace", "cancel"]
#: Why a campaign is paused, or has failed.
QUOTA, SUSPENDED, SENDER = "quota_exceeded", "organization_suspended", "sender_id_not_approved"
#: The organization has reached its limit for a day.
SPENT = "spend_limit_reached"
#: Somebody paused it, and somebody has to resume it: it does not continue by itself.
BY_REQUEST = "paused_by_request"
#: Its text was sealed with a key that was destroyed when the organization was closed.
ERASED = "text_erased"


class CampaignAudienceEmpty(Refusal):
    """This campaign has no recipients once opted-out and invalid numbers are removed."""

    code, status = "campaign_audience_empty", 409


class CampaignNotCancelable(Refusal):
    """This campaign has ended."""

    code, status = "campaign_not_cancelable", 409


class CampaignNotPausable(Refusal):
    """This campaign is not under way, so it cannot be paused or resumed."""

    code, status = "campaign_not_pausable", 409


def acts(campaign: Campaign, *, needs_approval: bool | None = None) -> frozenset[Action]:
    """The actions that would change this campaign and that the rules would accept. `needs_approval`: a paused one needs
    approval to continue (`rule.missing`); None: not checked, so its reason for being paused decides."""
    if campaign.status not in UNDER_WAY:
        return frozenset()
    possible: set[Action] = {"pace", "cancel"}
    reason = campaign.status_reason if campaign.status == "paused" else None
    if campaign.status in ("running", "paused") and reason != BY_REQUEST:
        possible.add("pause")
    waits = reason == rule.REASON if needs_approval is None else needs_approval
    if reason in (BY_REQUEST, rule.REASON) and not waits:
        possible.add("resume")
    return frozenset(possible)


class StepOutdated(Exception):
    """The data on which a step was based has changed meanwhile. The step is rolled back and decided again."""


class CampaignSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign to be created, on any channel. The API has checked lengths and types; everything else is checked
    here."""

    name: str
    scheduled_at: datetime | None = None
    #: Tags, an import or recipients.
    audience_tags: Sequence[str] | None = None
    audience_import: UUID | None = None
    audience_tag_match_mode: str = "any"
    #: Not with `recipients`.
    excluded_tags: Sequence[str] | None = None
    #: Contacts messaged within this many days are skipped.
    not_written_days: int | None = None
    recipients: Sequence[str] | None = None
    #: The campaign that the recipients did not get, if they were listed as such.
    again_of: UUID | None = None
    messages_per_minute: int | None = None


def checked_name(text: str) -> str:
    """A trimmed name. Raises Invalid."""
    return naming.checked(text, "name", longest=MAX_NAME)


def checked_time(asked: datetime | None, at: datetime) -> datetime | None:
    """Check the time at which a campaign is to start; None: at once. `at`: now. Raises Invalid (scheduled_at)."""
    if asked is not None and not at - MAX_PAST <= asked <= at + MAX_AHEAD:
        raise Invalid(("scheduled_at", "range", "`scheduled_at` must be between 60 seconds ago and 365 days ahead"))
    return asked


class CheckedSpec(msgspec.Struct, frozen=True):
    """A validated spec."""

    spec: CampaignSpec
    name: str
    #: By the database's clock.
    at: datetime
    scheduled_at: datetime | None
    tags: list[str] | None
    without: list[str]
    #: Listed recipients.
    found: audience.ListedNumbers | None


async def check_spec(conn: Connection, spec: CampaignSpec) -> CheckedSpec:
    """The checks that all channels share. Raises Invalid (name, time, tags, recipients)."""
    at: datetime = await conn.fetchval("SELECT now()")
    wrong = Problems()
    with wrong.gathering():
        name = checked_name(spec.name)
    with wrong.gathering():
        scheduled_at = checked_time(spec.scheduled_at, at)
    with wrong.gathering():
        listed, tags = audience.named(spec.recipients, spec.audience_tags, spec.audience_import)
    with wrong.gathering():
        audience.checked_days(spec.not_written_days)
    with wrong.gathering():
        without = audience.excluded(spec.excluded_tags, is_listed=spec.recipients is not None)
    wrong.report()
    found = None if listed is None else await audience.numbers(listed)
    return CheckedSpec(spec, name, at, scheduled_at, tags, without, found)


INSERT = f"""
INSERT INTO campaigns (organization_id, id, channel, name, status, mode, audience_tags, audience_tag_match_mode,
                       excluded_tags, with_names, messages_per_minute, request_id, scheduled_at, started_at, step_at,
                       created_at, total, pending, invalid, author_kind, author_id, audience_import,
                       not_written_days, again_of, {", ".join(CONTENT)})
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
        $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32)
RETURNING {COLUMNS}
"""


IMPORT = f"""
SELECT true FROM contact_imports WHERE organization_id = $1 AND id = $2 AND mode = $3 AND {drafts.IS_AUDIENCE}
"""


async def begin(
    conn: Connection,
    actor: Actor,
    *,
    checked: CheckedSpec,
    channel: str,
    content: Mapping[str, object],
    with_names: bool,
    request_id: str,
) -> Campaign:
    """Store a campaign that its channel has checked; a worker starts it within a second of its time.

    `content`: the channel's part of CONTENT. `with_names`: it uses more than the recipients' numbers. Runs in the
    caller's transaction. Raises CampaignAudienceEmpty for one that starts at once without recipients, and Unavailable.
    """
    spec, at, found = checked.spec, checked.at, checked.found
    if spec.audience_import is not None and not await conn.fetchval(
        IMPORT, actor.organization_id, spec.audience_import, actor.mode
    ):
        raise Invalid(("audience_import", "unknown", "there is no import of contacts with this id"))
    starts = checked.scheduled_at is None or checked.scheduled_at <= at
    if starts and not await audience.anybody(
        conn,
        actor,
        tags=checked.tags,
        match_mode=spec.audience_tag_match_mode,
        without=checked.without,
        numbers=None if found is None else found.valid,
        imported=spec.audience_import,
    ):
        raise CampaignAudienceEmpty
    id = uuid7()
    pending, invalid = (len(found.valid), len(found.invalid)) if found else (0, 0)
    text = content.get("message_template")
    if isinstance(text, str):
        sealing = await Sealing.of(conn, [actor.organization_id])
        content = {**content, "message_template": sealing.sealed(actor.organization_id, TABLE, id, text)}
    row = await conn.fetchrow(
        INSERT,
        actor.organization_id,
        id,
        channel,
        checked.name,
        "staging" if starts else "scheduled",
        actor.mode,
        checked.tags,
        spec.audience_tag_match_mode,
        checked.without,
        with_names,
        spec.messages_per_minute,
        request_id,
        checked.scheduled_at,
        at if starts else None,
        at if starts else checked.scheduled_at,
        at,
        pending + invalid,
        pending,
        invalid,
        actor.principal.kind,
        actor.principal.id,
        spec.audience_import,
        spec.not_written_days,
        spec.again_of,
        *(content.get(name) for name in CONTENT),
    )
    assert row is not None
    if found:
        await audience.keep(conn, actor.organization_id, id, found.valid)
        await skipped.keep(
            conn, actor.organization_id, id, [(skipped.printable(one), skipped.NO_NUMBER) for one in found.invalid]
        )
    told = {
        "channel": channel,
        "status": row["status"],
        "audience_tags": checked.tags,
        "recipients": pending + invalid,
    }
    told |= {"excluded_tags": checked.without} if checked.without else {}
    told |= {"not_written_days": spec.not_written_days} if spec.not_written_days else {}
    told |= {"audience_import": str(spec.audience_import)} if spec.audience_import else {}
    told |= {
        "scheduled_at": checked.scheduled_at,
        "messages_per_minute": spec.messages_per_minute,
        "mode": actor.mode,
    }
    await audit.record(conn, actor, "campaign.created", object_id=id, name=checked.name, after=told)
    # For a campaign that starts at once, the notice is recorded when it stops.
    if not starts and await rule.expected(conn, actor.organization_id, id) is not None:
        facts = {"channel": channel}
        await notices.record(
            conn, Notice(actor.organization_id, "campaign.approval", str(id), checked.name, facts=facts)
        )
    return (await read(conn, actor.organization_id, [row]))[0]


def guard(status: str) -> str:
    """An SQL condition: a campaign may move to `status`."""
    return f"status IN ({', '.join(repr(name) for name in STATES[status])})"


#: The guarded change of state. Recipients pending when a campaign is canceled or fails will never get it. A campaign
#: that starts keeps its turn: of thousands that are due together, the first ones are sent before the others start.
MOVES = {
    status: f"""
UPDATE campaigns SET status = '{status}', status_reason = $3,
       started_at = CASE WHEN '{status}' = 'staging' THEN coalesce(started_at, now()) ELSE started_at END,
       completed_at = CASE WHEN '{status}' = 'completed' THEN now() END,
       canceled = canceled + CASE WHEN '{status}' IN ('canceled', 'failed') THEN pending ELSE 0 END,
       stalled_at = CASE WHEN '{status}' = 'paused' AND $3 NOT IN ('{BY_REQUEST}', '{rule.REASON}')
                         THEN coalesce(stalled_at, now()) END,
       pending = CASE WHEN '{status}' IN ('canceled', 'failed') THEN 0 ELSE pending END,
       step_at = CASE WHEN '{status}' = 'completed' THEN NULL
                      WHEN '{status}' IN ('staging', 'running') THEN least(step_at, clock_timestamp())
                      ELSE clock_timestamp() END
 WHERE organization_id = $1 AND id = $2 AND {guard(status)}
RETURNING {COLUMNS}, organization_id, mode, request_id, completed_at AS at, author_kind, author_id
"""
    for status, sources in STATES.items()
    if sources
}


async def move(
    conn: Connection,
    organization_id: UUID,
    id: UUID,
    status: str,
    *,
    reason: str | None = None,
    was: str | None = None,
    by: Principal = SYSTEM,
) -> Campaign | None:
    """Move a campaign to `status` if the table above allows it; None: it does not.

    `was`: the status that it is known to have, for the audit log.

    Records `campaign.completed`. Runs in the caller's transaction.
    """
    row = await conn.fetchrow(MOVES[status], organization_id, id, reason)
    if row is None:
        return None
    (moved,) = await read(conn, organization_id, [row])
    if was is not None and was != status:
        before, after = {"status": was}, {"status": status, "status_reason": reason}
        await audit.record(
            conn,
            by,
            "campaign.moved",
            object_id=id,
            name=moved.name,
            organization_id=organization_id,
            before=before,
            after=after,
        )
    if status in ("running", "completed", "canceled", "failed"):
        await notices.withdraw(conn, organization_id, "campaign.approval", str(id))
        # It may stall again at once, which is not to be reported each time (`notices.conditions` reports it later).
        quiet = notices.QUIET if status == "running" else None
        await notices.withdraw(conn, organization_id, "campaign.paused", str(id), quiet=quiet)
    facts = {"channel": moved.channel}
    if status == "paused" and reason == rule.REASON:
        waits = Notice(organization_id, "campaign.approval", str(id), moved.name, row["mode"], facts)
        await notices.record(conn, waits)
    elif status in ("completed", "failed") or (status == "paused" and reason != BY_REQUEST and was != "paused"):
        facts |= {} if reason is None else {"reason": reason}
        await notices.record(
            conn, Notice(organization_id, f"campaign.{status}", str(id), moved.name, row["mode"], facts)
        )
    elif status == "canceled" and row["author_kind"] == "person" and row["author_id"] != by.id:
        # Operators are not named to organizations.
        facts |= {"by": by.name} if by.kind == "person" else {}
        told = Notice(organization_id, "campaign.canceled", str(id), moved.name, row["mode"], facts, row["author_id"])
        await notices.record(conn, told)
    if status == "completed":
        await events.record(conn, [_completed(moved, row)])
    return moved


async def cancel(conn: Connection, actor: Actor, *, id: UUID, channel: str = "sms") -> Campaign:
    """Cancel a campaign; repeating changes nothing. Runs in the caller's transaction.

    Nothing more is staged; a worker withdraws messages that are staged but not sent, and refunds their cost. Raises
    NotFound, and CampaignNotCancelable if it has completed or failed.
    """
    before = await _held(conn, actor, id=id, channel=channel)
    if before.status == "canceled":
        return before
    moved = await move(conn, actor.organization_id, id, "canceled", was=before.status, by=actor.principal)
    if moved is None:
        raise CampaignNotCancelable(id=str(id), status=before.status)
    return moved


async def pause(conn: Connection, actor: Actor, *, id: UUID, channel: str = "sms") -> Campaign:
    """Pause a campaign until somebody resumes it; repeating changes nothing. Runs in the caller's transaction.

    Nothing more is staged from now on; a worker postpones staged messages, and those that workers have already taken
    are sent. Raises NotFound, and CampaignNotPausable if it has not begun or has ended.
    """
    before = await _held(conn, actor, id=id, channel=channel)
    if before.status not in ("running", "paused"):
        raise CampaignNotPausable(id=str(id), status=before.status)
    if before.status == "paused" and before.status_reason == BY_REQUEST:
        return before
    return await _moved_by(conn, actor, before, "paused", reason=BY_REQUEST)


async def resume(conn: Connection, actor: Actor, *, id: UUID, channel: str = "sms") -> Campaign:
    """Resume a campaign that somebody paused; a campaign that is running, or waits for quota, is unchanged. Runs in the
    caller's transaction. Raises NotFound, CampaignNotPausable if it has not begun or has ended, and
    CampaignApprovalRequired, except for operators, who need no approval."""
    before = await _held(conn, actor, id=id, channel=channel)
    if before.status not in ("running", "paused"):
        raise CampaignNotPausable(id=str(id), status=before.status)
    if before.status == "running" or before.status_reason not in (BY_REQUEST, rule.REASON):
        return before
    if not actor.is_operator and (above := await rule.missing(conn, actor.organization_id, id)) is not None:
        raise CampaignApprovalRequired(id=str(id), recipients=before.counts.total, limit=above)
    return await _moved_by(conn, actor, before, "running", reason=None)


# If the next message is due further ahead than LEAD, as with a slow pace, due times begin again from now.
PACE = f"""
UPDATE campaigns SET messages_per_minute = $3,
       due_at = CASE WHEN messages_per_minute IS NOT NULL AND due_at < now() + $4::interval THEN due_at END,
       step_at = CASE WHEN status = 'running' AND step_at IS NOT NULL THEN clock_timestamp() ELSE step_at END
 WHERE organization_id = $1 AND id = $2 RETURNING {COLUMNS}
"""


async def change_pace(
    conn: Connection, actor: Actor, *, id: UUID, messages_per_minute: int | None, channel: str = "sms"
) -> Campaign:
    """Stage the rest at a different pace; None: as fast as possible. Runs in the caller's transaction.

    Messages already staged keep their times: up to 20 s worth of a paced campaign, perhaps all of one without a pace.
    Raises NotFound, Invalid (messages_per_minute), and CampaignNotPausable if it has ended.
    """
    if messages_per_minute is not None and not 1 <= messages_per_minute <= MAX_PACE:
        raise Invalid(("messages_per_minute", "range", f"`messages_per_minute` must be from 1 to {MAX_PACE}"))
    before = await _held(conn, actor, id=id, channel=channel)
    if before.status not in UNDER_WAY:
        raise CampaignNotPausable(id=str(id), status=before.status)
    if before.messages_per_minute == messages_per_minute:
        return before
    row = await conn.fetchrow(PACE, actor.organization_id, id, messages_per_minute, LEAD)
    assert row is not None, "its row is locked"
    await audit.record(
        conn,
        actor,
        "campaign.paced",
        object_id=id,
        name=before.name,
        before={"messages_per_minute": before.messages_per_minute},
        after={"messages_per_minute": messages_per_minute},
    )
    return (await read(conn, actor.organization_id, [row]))[0]


async def _held(conn: Connection, actor: Actor, *, id: UUID, channel: str) -> Campaign:
    """The campaign, with its row locked, so that decisions about it remain valid."""
    await conn.fetchval(LOCK, actor.organization_id, id)
    return await get(conn, actor, id=id, channel=channel)


LOCK = "SELECT id FROM campaigns WHERE organization_id = $1 AND id = $2 FOR UPDATE"


async def _moved_by(conn: Connection, actor: Actor, before: Campaign, status: str, *, reason: str | None) -> Campaign:
    moved = await move(conn, actor.organization_id, before.id, status, reason=reason)
    assert moved is not None, "its row is locked"
    await audit.record(
        conn,
        actor,
        "campaign.moved",
        object_id=before.id,
        name=before.name,
        before={"status": before.status, "status_reason": before.status_reason},
        after={"status": status, "status_reason": reason},
    )
    return moved


def _completed(one: Campaign, row: asyncpg.Record) -> events.Event:
    return events.Event(
        organization_id=row["organization_id"],
        id=uuid7(),
        kind="campaign.completed",
        request_id=row["request_id"],
        data=msgspec.json.encode({"campaign": shown(one)}).decode(),
        created_at=row["at"],
        mode=row["mode"],
    )
