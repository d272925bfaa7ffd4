"""Staging: turns a campaign's recipients into messages.

A worker takes one campaign whose step is due, organizations in turn, locks its row, does one step and commits: start
it, gather contacts, stage a chunk of messages, or withdraw the staged messages of a canceled one. Any number of workers
can do this at once; a kill at any moment undoes the step in progress and nothing else.

The rule nobody may break: a chunk's messages, their debit and the cursor that moves past their recipients are one
commit, so nobody gets a campaign twice and nobody is skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph import traces
from heliograph.accounts.organizations import STOPPED, not_allowed
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.ids import uuid7
from heliograph.base.process import measures, spans
from heliograph.base.process.crash import crash_point
from heliograph.base.process.spans import Span
from heliograph.campaigns import audience, counting, pausing, plan, withdrawal
from heliograph.campaigns.approval import rule
from heliograph.campaigns.channels.contract import Batch, DueCampaign, StagedMessage, StagingStop
from heliograph.campaigns.channels.table import CHANNELS
from heliograph.consent import skipped
from heliograph.consent.skipped import SkippedRecipient
from heliograph.contacts import recency

log = structlog.get_logger()

#: Pause after a failed step, and after one whose organization's balance somebody keeps locked.
FAILED, LOCKED = timedelta(seconds=30), timedelta(seconds=5)
#: How long prefetched recipients may be used, in seconds: somebody may have opted out since.
FRESH = 1.0
#: gather_tag of a campaign whose audience is complete.
COMPLETE = -1

#: SQL condition: a campaign's step is due.
ANY_STEP = "EXISTS (SELECT FROM campaigns WHERE step_at <= now())"
# The next organization after the last one served ($1), with its campaign that has waited longest: read in the order of
# the index, so that what a step costs does not grow with the campaigns that wait.
TAKE = """
SELECT c.organization_id, c.id, c.channel, c.status, c.status_reason, c.mode, c.audience_tags, c.audience_import,
       c.audience_tag_match_mode, c.excluded_tags, c.not_written_days, c.with_names, c.messages_per_minute,
       c.request_id, c.gather_tag, c.gather_after, c.staged_to, c.total, c.due_at,
       clock_timestamp() AS at, o.state, o.smart_encoding, o.replace_accents, o.allowed_countries
  FROM campaigns c CROSS JOIN LATERAL (
       SELECT * FROM organizations WHERE id = c.organization_id LIMIT 1) o
 WHERE c.step_at <= now() AND c.organization_id > $1
 ORDER BY c.organization_id, c.step_at LIMIT 1 FOR UPDATE OF c SKIP LOCKED
"""
# The approval moves it on.
WAIT = "UPDATE campaigns SET step_at = NULL WHERE organization_id = $1 AND id = $2"
LATER = "UPDATE campaigns SET step_at = clock_timestamp() + $3::interval WHERE organization_id = $1 AND id = $2"


class Stager:
    """Advances campaigns, step by step; one per worker."""

    def __init__(
        self,
        pool: Pool,
        *,
        on_staged: Callable[[str], None] = lambda channel: None,
        chunk: int | None = None,
        gather: int = audience.GATHER,
    ) -> None:
        """`on_staged` is called with the channel after each commit that put messages into the queue. `chunk`, `gather`:
        recipients staged (None: as many as the channel allows) and contacts examined per step."""
        self._pool = pool
        self._chunk, self._gather = chunk, gather
        self._on_staged = on_staged
        self._served = UUID(int=0)
        self._ahead: _Ahead | None = None
        self._patience = pausing.Patience()
        #: The chunk staged in this round.
        self._done: _Chunk | None = None

    async def round(self) -> int:
        """Do one step of one campaign; returns 0 if none was due."""
        due: DueCampaign | None = None
        self._done, staged = None, False
        if self._ahead is not None:  # awaited without holding a connection, because it needs one itself
            await asyncio.wait([self._ahead.task])
        try:
            async with self._pool.acquire() as conn, conn.transaction():
                row = await conn.fetchrow(TAKE, self._served) or await conn.fetchrow(TAKE, UUID(int=0))
                if row is None:
                    return 0
                due = DueCampaign(*row.values())
                self._served = due.organization_id
                staged = await self._step(conn, due)
                crash_point("campaign.before_commit")
            crash_point("campaign.after_commit")
        except (plan.StepOutdated, asyncpg.DeadlockDetectedError):
            return 1
        except Exception as error:
            if is_down(error) or due is None:
                raise
            # A campaign that fails must not block the others, nor one that waits for a row that somebody keeps locked.
            if not (is_locked := isinstance(error, asyncpg.LockNotAvailableError)):
                log.exception("campaign step failed", campaign_id=str(due.id))
            await self._pool.execute(LATER, due.organization_id, due.id, LOCKED if is_locked else FAILED)
            return 1
        if self._done is not None:
            self._done.count(due.channel)
        if staged:
            self._on_staged(due.channel)
        return 1

    async def _step(self, conn: Connection, due: DueCampaign) -> bool:
        """Do the step required by the campaign's state; True if it put messages into the queue."""
        match due.status:
            case "scheduled":
                await plan.move(conn, due.organization_id, due.id, "staging")
            case "staging":
                await _gather(conn, due, most=self._gather)
            case "paused" if due.status_reason == rule.REASON:
                await conn.execute(WAIT, due.organization_id, due.id)
            case "paused" if due.status_reason == plan.BY_REQUEST:
                await pausing.put_off(conn, due)
            case "running" if await pausing.take_up(conn, due):
                return True
            case "running" | "paused":
                return await self._stage(conn, due)
            case _:
                await withdrawal.withdraw(conn, due)
        return False

    async def _stage(self, conn: Connection, due: DueCampaign) -> bool:
        """Stage the next chunk, as far as its funds and pace allow."""
        campaign = due.organization_id, due.id
        if due.state in STOPPED:
            await self._pause(conn, due, plan.SUSPENDED)
            return False
        batch = await CHANNELS[due.channel].open(conn, due)
        if isinstance(batch, StagingStop):
            if batch.fails:
                await plan.move(conn, *campaign, "failed", reason=batch.reason, was=due.status)
            else:
                await self._pause(conn, due, batch.reason)
            return False
        base, each, limit = _pace(due, self._chunk or CHANNELS[due.channel].most)
        wanted = _Wanted(due, batch, due.staged_to, limit)
        chunk = self._read_before(wanted) or await _read(conn, wanted)
        if batch.short(len(chunk.made), chunk.cost) is not None:
            chunk = _judge(wanted, chunk.rows, short=batch.short)
            if not chunk.passed:
                assert chunk.short is not None
                await self._pause(conn, due, chunk.short)
                return False
        elif each is None and len(chunk.rows) == limit:
            self._read_ahead(_Wanted(due, batch, chunk.last, limit))
        if due.status == "paused":
            await plan.move(conn, *campaign, "running", was=due.status)
        if count := len(chunk.recipients):
            due_at = [] if each is None else [base + each * n for n in range(count)]
            await _accept(conn, due, batch, chunk, due_at=due_at)
        await skipped.keep(conn, *campaign, chunk.skipped)
        self._done = chunk
        ended = chunk.passed < limit and chunk.passed == len(chunk.rows)
        done = await conn.fetchval(
            ADVANCE,
            *campaign,
            chunk.last,
            count,
            chunk.opted_out,
            chunk.recently_written,
            chunk.invalid,
            None if each is None else base + each * count,
            ended,
            plan.LEAD / 2,
        )
        if ended and done:
            await plan.move(conn, *campaign, "completed")
        return count > 0

    async def _pause(self, conn: Connection, due: DueCampaign, reason: str) -> None:
        await plan.move(conn, due.organization_id, due.id, "paused", reason=reason, was=due.status)
        await conn.execute(LATER, due.organization_id, due.id, self._patience.pause(due.id))

    def _read_ahead(self, wanted: _Wanted) -> None:
        """Prefetch the next chunk while this one is being stored, which saves a third of the time."""

        async def read() -> _Chunk:
            async with self._pool.acquire() as conn:
                return await _read(conn, wanted)

        task = asyncio.create_task(read())
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        self._ahead = _Ahead(wanted, task, task.get_loop().time())

    def _read_before(self, wanted: _Wanted) -> _Chunk | None:
        """The prefetched chunk, if it is the wanted one and its opt-outs are recent enough."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or not ahead.wanted.alike(wanted) or ahead.task.get_loop().time() - ahead.at > FRESH:
            return None
        return None if ahead.task.cancelled() or ahead.task.exception() else ahead.task.result()


GATHERED = f"""
UPDATE campaigns SET total = total + $3, pending = pending + $3, gather_tag = $4, gather_after = $5,
                     step_at = CASE WHEN $4::smallint = {COMPLETE} THEN step_at
                                    ELSE clock_timestamp() + $6::interval END
 WHERE organization_id = $1 AND id = $2
"""


async def _gather(conn: Connection, due: DueCampaign, *, most: int) -> None:
    if not due.is_gathered or due.gather_tag == COMPLETE:
        if await rule.missing(conn, due.organization_id, due.id) is None:
            await plan.move(conn, due.organization_id, due.id, "running")
        else:
            await plan.move(conn, due.organization_id, due.id, "paused", reason=rule.REASON, was=due.status)
        return
    if due.audience_import is not None:
        found = await audience.gather_imported(
            conn,
            due.organization_id,
            due.id,
            mode=due.mode,
            imported=due.audience_import,
            without=due.excluded_tags,
            after=due.gather_after,
            with_names=due.with_names,
        )
    else:
        found = await audience.gather(
            conn,
            due.organization_id,
            due.id,
            mode=due.mode,
            tags=due.audience_tags or (),
            match_mode=due.audience_tag_match_mode,
            without=due.excluded_tags,
            tag=due.gather_tag,
            after=due.gather_after,
            with_names=due.with_names,
            most=most,
        )
    following = COMPLETE if found.tag is None else found.tag
    await conn.execute(GATHERED, due.organization_id, due.id, found.added, following, found.after, found.pause)


# $9: the last recipient has been passed, and there is no further step.
ADVANCE = """
UPDATE campaigns SET staged_to = $3, pending = pending - $4 - $5 - $6 - $7, queued = queued + $4,
                     opted_out = opted_out + $5, recently_written = recently_written + $6, invalid = invalid + $7,
                     due_at = $8, drained_at = NULL,
                     step_at = CASE WHEN NOT $9 THEN greatest(clock_timestamp(), $8::timestamptz - $10::interval) END
 WHERE organization_id = $1 AND id = $2
RETURNING pending = 0 AND queued = 0 AND sent = 0 AS done
"""


class _Chunk(msgspec.Struct):
    """Examined recipients: those who get a message, and those who are skipped."""

    rows: list[audience.Recipient]
    #: The last recipient passed, and how many were.
    last: str
    passed: int = 0
    opted_out: int = 0
    recently_written: int = 0
    invalid: int = 0
    cost: int = 0
    #: Why it ends before the last of `rows`; None: it does not.
    short: str | None = None
    recipients: list[str] = msgspec.field(default_factory=list)
    made: list[StagedMessage] = msgspec.field(default_factory=list)
    skipped: list[SkippedRecipient] = msgspec.field(default_factory=list)

    def skip(self, phone: str, reason: str) -> None:
        """Skip a recipient."""
        self.skipped.append((phone, reason))
        if reason == skipped.OPTED_OUT:
            self.opted_out += 1
        elif reason == skipped.RECENTLY_WRITTEN:
            self.recently_written += 1
        else:
            self.invalid += 1

    def count(self, channel: str) -> None:
        """Count the chunk in the metrics, once it is committed."""
        measures.CAMPAIGN_RECIPIENTS.add(channel, "queued", by=len(self.recipients))
        measures.CAMPAIGN_RECIPIENTS.add(channel, "opted_out", by=self.opted_out)
        measures.CAMPAIGN_RECIPIENTS.add(channel, "recently_written", by=self.recently_written)
        measures.CAMPAIGN_RECIPIENTS.add(channel, "invalid", by=self.invalid)


class _Wanted(msgspec.Struct, frozen=True):
    """Which recipients to read, and everything that affects the decisions about them."""

    due: DueCampaign
    batch: Batch
    after: str
    limit: int

    def alike(self, other: _Wanted) -> bool:
        """True if it would have the same result."""
        return self._key() == other._key()

    def _key(self) -> tuple[object, ...]:
        due = self.due
        # The total changes if a recipient is erased.
        return due.organization_id, due.id, self.after, self.limit, due.total, due.allowed_countries, self.batch.key


class _Ahead(msgspec.Struct, frozen=True):
    """A chunk that is being prefetched."""

    wanted: _Wanted
    task: asyncio.Task[_Chunk]
    at: float


async def _read(conn: Connection, wanted: _Wanted) -> _Chunk:
    """The next recipients, each with the decision about them, regardless of cost."""
    due = wanted.due
    rows = await audience.following(
        conn,
        due.organization_id,
        due.id,
        after=wanted.after,
        limit=wanted.limit,
        mode=due.mode,
        is_named=not due.is_gathered and due.with_names,
        written_after=None if due.not_written_days is None else due.at - timedelta(days=due.not_written_days),
    )
    return _judge(wanted, rows, short=_covered)


def _covered(messages: int, cost: int) -> None:
    """Treats messages as covered, whatever they cost."""


def _judge(wanted: _Wanted, rows: list[audience.Recipient], *, short: Callable[[int, int], str | None]) -> _Chunk:
    """Decide about each recipient, until the next message would not be covered according to `short`."""
    chunk = _Chunk(rows, wanted.after)
    allowed = None if wanted.due.allowed_countries is None else frozenset(wanted.due.allowed_countries)
    for recipient in rows:
        phone, *_, skip = recipient
        if skip is not None:
            chunk.skip(phone, skip)
        elif not_allowed(allowed, phone) is not None:
            chunk.skip(phone, skipped.NOT_ALLOWED)
        elif (made := wanted.batch.make(recipient)) is None:
            chunk.skip(phone, skipped.UNFIT)
        elif (reason := short(len(chunk.made) + 1, chunk.cost + made.cost)) is not None:
            chunk.short = reason
            break
        else:
            chunk.cost += made.cost
            chunk.recipients.append(phone)
            chunk.made.append(made)
        chunk.last = phone
        chunk.passed += 1
    return chunk


async def _accept(conn: Connection, due: DueCampaign, batch: Batch, chunk: _Chunk, *, due_at: list[datetime]) -> None:
    """Store the chunk's messages. Raises plan.StepOutdated if some are not wanted or covered now, or need other ids."""
    ids = [uuid7() for _ in chunk.recipients]
    begun: list[tuple[UUID, Span]] = []
    if spans.on():
        said = {"organization_id": str(due.organization_id), "campaign_id": str(due.id)}
        for at, id in enumerate(ids):
            if spans.chosen():
                ids[at] = spans.marked(id)
                begun.append((ids[at], spans.root("campaign message", said | {"message_id": str(ids[at])})))
    if not await batch.accept(conn, ids, chunk.recipients, chunk.made, due_at):
        raise plan.StepOutdated
    # Another campaign may have staged some of them just before. The balance is locked, but that of one channel alone.
    await recency.take_turn(conn, due.organization_id)
    whom = (due.organization_id, due.mode, chunk.recipients)
    is_late = due.not_written_days and await recency.awaiting(conn, *whom, besides=due.id)
    if is_late or not await counting.begin(conn, due, ids):
        raise plan.StepOutdated
    if begun:
        await traces.keep(conn, [(due.organization_id, id, span.context) for id, span in begun])
        for _, span in begun:
            span.end()


def _pace(due: DueCampaign, most: int) -> tuple[datetime, timedelta | None, int]:
    """When the chunk's first message is due, the interval between messages (None: no pacing), and how many to stage
    now."""
    if due.messages_per_minute is None:
        return due.at, None, most
    each = timedelta(minutes=1) / due.messages_per_minute
    base = max(due.due_at or due.at, due.at)
    return base, each, max(1, min(most, (due.at + plan.LEAD - base) // each))
