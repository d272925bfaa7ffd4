"""The effect of Meta's answer on an attempt, its message, its queue row, and everything else that it concerns.

    accepted      its wamid is bound, and earlier statuses are applied; the work is done
    refused       the message has failed
    busy          later: trouble with the message itself counts as a try, with a number, account or user it does not
    unreachable   nothing was sent: try again
    unknown       waits for a status first; the channel decides when the wait is over

A fault of a credential, an account, a number or a template is recorded where all workers see it (`follow`), and the
messages that encountered it return to the queue unchanged.

The rule nobody may break: an answer is a fact. It is recorded even by a worker that lost its lease meanwhile; and a
message that a status has shown to be accepted stays accepted, whatever the connection says later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
import structlog

from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.base.retry import hold_pause
from heliograph.queue.leases import Postponed
from heliograph.sending.attempts import EndedAttempt
from heliograph.sending.results import AnsweredAttempt
from heliograph.sending.settling import Settlement, settle
from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud.contract import OWN_PACE, CloudOutcome
from heliograph.suppliers.whatsapp_cloud.errors import Fault, Kind, Scope
from heliograph.suppliers.whatsapp_cloud.pacing import PAIR_AHEAD, PAIR_MOST_AHEAD, PAIR_SECONDS
from heliograph.whatsapp.callbacks import conversations, matching
from heliograph.whatsapp.callbacks.matching import Found, WiderFailure, failure_of
from heliograph.whatsapp.dispatch import holds, test_mode
from heliograph.whatsapp.dispatch.claimed import PAID_UNTIL, ClaimedMessage
from heliograph.whatsapp.mirror import accounts, numbers, template_sync
from heliograph.whatsapp.status import Move

log = structlog.get_logger()

#: The code of an attempt that was never handed over.
UNCOMMITTED = "uncommitted"
#: Codes of outcomes that say nothing about Meta: the connector was stopped, or held, before the message was sent, or it
#: never got the message.
NEVER_LEFT = frozenset({"held", "stopped", "stopping", UNCOMMITTED})
#: Scopes that a fault stops altogether.
STOPS = frozenset({Scope.NUMBER, Scope.ACCOUNT, Scope.CREDENTIAL})
#: Seconds until an account is read whose number Meta refuses as missing: at once, but not after each probe.
MISSING, STILL_MISSING = 0.0, 300.0
#: The codes for a template that is disabled permanently, and for one that Meta does not know or has not approved.
DISABLED, UNKNOWN = 132016, 132001


class Context(msgspec.Struct, frozen=True, gc=False):
    """What the effects of an answer depend on, besides its message."""

    #: None: a message of a test key.
    account_id: UUID | None
    #: The account's token that it was sent with, sealed.
    token: bytes = b""
    #: Its number or account was held when it was sent: it is the probe.
    tries_hold: bool = False
    #: It counts toward Meta's limit for its user since it began (`count`).
    is_counted: bool = False


async def record(conn: Connection, answered: Sequence[AnsweredAttempt], *, grace: float) -> Found:
    """Record ends of attempts; returns the moves that follow, to be made by the caller in the same transaction, before
    `follow` and `apply_wider_failures`. `grace`: seconds that an unknown outcome waits for a status."""
    at = now()
    moves: list[Move] = await settle(conn, [decide(one, at, grace) for one in answered])
    early = Found([], set(), [])
    accepted = [one for one in answered if one.outcome.verdict is Verdict.ACCEPTED]
    if accepted:
        early = await _bind(conn, accepted)
        await test_mode.expect(
            conn,
            [(one.attempt.lease.organization_id, one.attempt.lease.id, one.attempt.submission.recipient)
             for one in accepted if _context(one).account_id is None],
        )  # fmt: skip
    return msgspec.structs.replace(early, moves=moves + early.moves)


def decide(one: AnsweredAttempt, at: datetime, grace: float) -> Settlement:
    """What happens to the message and its queue row. Pure."""
    outcome: CloudOutcome = one.outcome
    lease, attempt, due = one.attempt.lease, one.attempt.number, one.attempt.message
    ended = EndedAttempt(one.attempt, outcome.verdict.value, outcome.code, _detail(outcome))
    message = (lease.organization_id, lease.id)
    fault = outcome.fault
    pause: float | None = hold_pause(attempt)
    counts = False
    match outcome.verdict:
        case Verdict.ACCEPTED:
            return Settlement(ended)
        case Verdict.UNKNOWN:
            return Settlement(ended, postponed=Postponed(lease, grace, lease.line, counts=False))
        case Verdict.REFUSED:
            pause = None
        case Verdict.UNREACHABLE if outcome.code in NEVER_LEFT:
            pause = 0.0
        case Verdict.BUSY if fault is not None:
            counts = fault.counts
            pause = fault.wait(lease.tries + 1 if counts else attempt, code=due.authentication)
            if fault.kind is Kind.TEMPLATE and due.authentication:
                pause = None  # a one-time code is useless in three hours
            if pause is not None:
                # A hold also stops the messages: they are due as soon as sending may resume. Nothing holds those of a
                # Flow that is throttled.
                held = fault.kind is Kind.TEMPLATE or (fault.scope in STOPS and not fault.slow)
                pause = 0.0 if held else max(pause, outcome.retry_after or 0.0)
    if pause is None:
        return Settlement(ended, Move(*message, "failed", at, failure_of(fault) if fault else "unknown", unsent=True))
    if at + timedelta(seconds=pause) >= due.expires_at:
        # The reason for the wait is more informative than `expired`.
        known = failure_of(fault) if fault is not None else "unknown"
        return Settlement(ended, Move(*message, "failed", at, "expired" if known == "unknown" else known, unsent=True))
    return Settlement(ended, postponed=Postponed(lease, pause, lease.line, counts=counts))


# Each message uses up PAIR_SECONDS of what Meta allows the pair, from now or from the end of what is already used up.
# If Meta refuses another one, all of it is. It stays within what PAID_UNTIL believes: beyond that, none would count.
OUTBOUND = f"""
UPDATE whatsapp_conversations c
   SET last_outbound_at = CASE WHEN v.is_reached THEN $1 ELSE c.last_outbound_at END,
       pair_paid_until = least(greatest(greatest({PAID_UNTIL}, $1) + v.messages * interval '{PAIR_SECONDS} seconds',
                                        $1 + make_interval(secs => {PAIR_AHEAD} + v.pause)),
                               $1 + interval '{PAIR_MOST_AHEAD - PAIR_SECONDS} seconds')
  FROM unnest($2::uuid[], $3::uuid[], $4::integer[], $5::boolean[], $6::float8[])
       AS v (organization_id, id, messages, is_reached, pause)
 WHERE c.organization_id = v.organization_id AND c.id = v.id
"""


async def count(conn: Connection, messages: Sequence[ClaimedMessage]) -> None:
    """Count messages that are about to be sent toward Meta's limits for their users; others count once accepted. Runs
    after the moves, as `follow` does."""
    counts = Counter((one.lease.organization_id, one.conversation_id) for one in messages)
    await _outbound(conn, counts, reached=(), refused={})


async def _outbound(
    conn: Connection,
    counts: Mapping[tuple[UUID, UUID], int],
    *,
    reached: Collection[tuple[UUID, UUID]],
    refused: Mapping[tuple[UUID, UUID], float],
) -> None:
    """Add to the messages of conversations, in one order, so that two transactions cannot deadlock. `reached`: those of
    them whose user was sent a message; `refused`: those for which Meta took no more messages, and the pause, seconds,
    until the next one."""
    if keys := sorted(counts.keys() | refused.keys(), key=lambda key: key[1].int):
        columns = [one for one, _ in keys], [id for _, id in keys], [counts.get(key, 0) for key in keys]
        await conn.execute(
            OUTBOUND, now(), *columns, [key in reached for key in keys], [refused.get(key) for key in keys]
        )


async def follow(conn: Connection, answered: Sequence[AnsweredAttempt]) -> tuple[int, bool]:
    """The effects of answers beyond their messages: names of users, last contact, holds, ended holds, windows. Runs
    after the moves, in their transaction: code that accepts a message locks the wallet first and then its conversation.
    Returns the number of webhook deliveries queued, and whether all names are stored."""
    live = [one for one in answered if _context(one).account_id is not None]
    accepted = [one for one in answered if one.outcome.verdict is Verdict.ACCEPTED]
    names = {
        name
        for one in answered
        for name in matching.links(
            _organization(one), one.attempt.submission.recipient, one.outcome.wa_id, one.outcome.user_id
        )
    }
    are_named = await matching.name_users(conn, names)
    reached = {(_organization(one), one.attempt.message.conversation_id) for one in accepted}
    counts: Counter[tuple[UUID, UUID]] = Counter()
    refused: dict[tuple[UUID, UUID], float] = {}
    for one in answered:
        key, is_counted = (_organization(one), one.attempt.message.conversation_id), _context(one).is_counted
        if one.outcome.verdict is Verdict.ACCEPTED:
            counts[key] += not is_counted
        elif is_counted and one.outcome.verdict is not Verdict.UNKNOWN:
            counts[key] -= 1
        if (fault := one.outcome.fault) is not None and fault.kind is Kind.PAIR and one.outcome.code != OWN_PACE:
            refused[key] = min(one.outcome.retry_after or fault.hold, fault.backoff.longest)
    failures = [
        ScopedFailure(
            _organization(one), due.number_id, about.account_id, due.template_id, due.conversation_id, outcome.fault,
            outcome.code, outcome.trace, outcome.retry_after or 0.0, tries_hold=about.tries_hold, token=about.token,
        )
        for one, due, outcome, about in ((one, one.attempt.message, one.outcome, _context(one)) for one in live)
        if about.account_id is not None and outcome.fault is not None and outcome.verdict is not Verdict.UNKNOWN
    ]  # fmt: skip
    await conversations.hold(conn, _closed(failures, now()), counts.keys() | refused.keys())
    await _outbound(conn, counts, reached=reached, refused=refused)
    await _note_users(conn, failures)
    deliveries = 0
    over = {
        (_organization(one), account_id, one.attempt.message.number_id)
        for one in accepted
        if _context(one).tries_hold and (account_id := _context(one).account_id) is not None
    }
    for organization_id, account_id, number_id in sorted(over, key=str):
        deliveries += await holds.answered(conn, organization_id, account_id, number_id)
    for one in live:
        if not _context(one).tries_hold or one.outcome.verdict is Verdict.ACCEPTED:
            continue
        if one.outcome.verdict is Verdict.UNKNOWN:
            await holds.unanswered(conn, _organization(one), one.attempt.lease.id)
        else:
            await holds.undecided(conn, _organization(one), [one.attempt.lease.id])
    return deliveries + await note(conn, failures), are_named


class ScopedFailure(msgspec.Struct, frozen=True, gc=False):
    """A fault, and the objects that it may concern beyond its message."""

    organization_id: UUID
    number_id: UUID
    account_id: UUID
    template_id: UUID | None
    conversation_id: UUID
    fault: Fault
    code: str = ""
    trace: str = ""
    #: Pause requested by Meta, seconds.
    retry_after: float = 0.0
    #: When a status reported it; None: an answer did, just now.
    at: datetime | None = None
    #: Its message was the probe after a hold.
    tries_hold: bool = False
    #: The sealed token of the answered request.
    token: bytes = b""

    @property
    def is_missing(self) -> bool:
        """Whether Meta says that the number is gone, or not visible: it may have moved to another account."""
        return self.fault.code == 33 or (self.fault.code, self.fault.subcode) == (100, 33)

    @property
    def whom(self) -> UUID:
        match self.fault.scope:
            case Scope.NUMBER:
                return self.number_id
            case Scope.TEMPLATE:
                return self.template_id or self.account_id
        return self.account_id


ABOUT = """
SELECT item.n, coalesce(c.merged_into, m.conversation_id) AS conversation_id, m.template_id, n.account_id
  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) WITH ORDINALITY AS item (organization_id, number_id, id, n)
       CROSS JOIN LATERAL (SELECT conversation_id, template_id FROM whatsapp_messages
                            WHERE organization_id = item.organization_id AND id = item.id
                              AND number_id = item.number_id LIMIT 1) m
       LEFT JOIN LATERAL (SELECT merged_into FROM whatsapp_conversations
                           WHERE organization_id = item.organization_id AND id = m.conversation_id LIMIT 1) c ON true
       CROSS JOIN LATERAL (SELECT account_id FROM whatsapp_numbers
                            WHERE organization_id = item.organization_id AND id = item.number_id LIMIT 1) n
"""


async def apply_wider_failures(
    conn: Connection, wider: Sequence[WiderFailure], moved: Collection[UUID], *, heard: Sequence[Move] = ()
) -> int:
    """Like `follow`, for failures reported by statuses. Runs after the moves, and after `follow`, since Meta reports
    these after it accepts a message; returns the number of deliveries queued.

    `moved`: the messages that have failed because of it. Statuses are repeated for days, and an ended hold must not
    begin again; a window is closed as of when Meta reported it, however late that arrives. `heard`: moves by statuses
    of messages that may probe after a hold, which are followed before a failure begins another one.
    """
    found = [one for one in wider if one.fault.kind is Kind.WINDOW or one.message_id in moved]
    asked = [(one.organization_id, one.number_id, one.message_id) for one in found]
    rows = await conn.fetch(ABOUT, *map(list, zip(*asked, strict=True))) if asked else []
    failures = []
    for row in rows:
        one = found[row["n"] - 1]
        about, code = (row["account_id"], row["template_id"], row["conversation_id"]), str(one.fault.code)
        failures.append(ScopedFailure(one.organization_id, one.number_id, *about, one.fault, code, at=one.at))
    await _note_users(conn, failures)
    ended: dict[tuple[UUID, bool], list[UUID]] = {}
    for move in heard:
        ended.setdefault((move.organization_id, move.status != "failed"), []).append(move.message_id)
    for (organization_id, arrived), messages in sorted(ended.items(), key=lambda one: not one[0][1]):
        await (holds.sent if arrived else holds.undecided)(conn, organization_id, messages)
    return await note(conn, failures)


async def _note_users(conn: Connection, failures: Sequence[ScopedFailure]) -> None:
    """Record what faults say about users: before any hold, as conversations are locked before accounts."""
    at = now()
    dated = sorted(failures, key=lambda one: one.at or at)  # so that of several, the latest counts
    # As of when a status says so; an answer that does is counted with those of its batch.
    taken = {
        (one.organization_id, one.conversation_id): PAIR_SECONDS + (one.at - at).total_seconds()
        for one in dated
        if one.fault.kind is Kind.PAIR and one.at is not None
    }
    await conversations.hold(conn, closed := _closed(dated, at), taken)
    await _outbound(conn, {}, reached=(), refused=taken)
    await conversations.close_windows(conn, closed)


async def note(conn: Connection, failures: Sequence[ScopedFailure]) -> int:
    """Record what faults stop, each once, however many messages encountered it."""
    deliveries, at = 0, now()
    done: set[tuple[object, ...]] = set()
    # Accounts are locked before numbers, as in the mirror.
    missing = {(one.organization_id, one.account_id): one for one in failures if one.is_missing}
    for (organization_id, account_id), one in sorted(missing.items()):
        after = STILL_MISSING if one.tries_hold else MISSING
        await numbers.wake_mirror(conn, organization_id, account_id, numbers=True, after=after)
    # Of several that say the same, the latest counts: a hold lasts from then on.
    for one in sorted(
        failures,
        key=lambda one: (one.fault.scope is Scope.NUMBER, one.account_id.int, one.number_id.int, at - (one.at or at)),
    ):
        fault = one.fault
        token = one.token if fault.kind is Kind.AUTH else b""
        key = (fault.scope, fault.code, one.whom, token)
        if key in done:
            continue
        done.add(key)
        if fault.alarm:
            log.error(
                "whatsapp account problem", code=one.code, what=fault.title, scope=fault.scope.value,
                number_id=str(one.number_id), trace=one.trace,
            )  # fmt: skip
        seconds = max(fault.hold, one.retry_after)
        if fault.kind is Kind.TEMPLATE:
            deliveries += await _template(conn, one, seconds)
        elif fault.scope is Scope.NUMBER and not fault.slow:
            await holds.hold_number(
                conn, one.organization_id, one.number_id, seconds=seconds, reason=fault.title, token=token or None,
                by_status=one.at is not None, at=one.at,
            )  # fmt: skip
        elif fault.slow and one.at is not None:  # after an answer, the connector has slowed itself
            await holds.slow_number(conn, one.organization_id, one.number_id, one.at)
        elif fault.scope in (Scope.ACCOUNT, Scope.CREDENTIAL):
            deliveries += await holds.hold_account(
                conn,
                one.organization_id,
                one.account_id,
                seconds=seconds,
                reason=fault.title,
                credential_invalid=fault.code in accounts.INVALID,
                token=token or None,
                by_status=one.at is not None and fault.scope is Scope.ACCOUNT,
                at=one.at,
            )
    return deliveries


def _closed(failures: Sequence[ScopedFailure], at: datetime) -> dict[tuple[UUID, UUID], datetime]:
    """The conversations whose window is closed, and since when; `at`: now."""
    refused = [one for one in failures if one.fault.kind is Kind.WINDOW]
    return {(one.organization_id, one.conversation_id): one.at or at for one in refused}


async def _template(conn: Connection, one: ScopedFailure, seconds: float) -> int:
    if one.template_id is not None and one.fault.code == UNKNOWN:
        await template_sync.doubt(conn, one.organization_id, one.template_id)
        return 0
    if one.template_id is not None and (one.fault.waits or one.fault.code == DISABLED):
        status = "paused" if one.fault.waits else "disabled"
        ids = one.organization_id, one.template_id
        return await template_sync.hold(conn, *ids, seconds=seconds, status=status, at=one.at)
    # Our copy of it is out of date.
    await numbers.wake_mirror(conn, one.organization_id, one.account_id, templates=True)
    return 0


async def _bind(conn: Connection, accepted: Sequence[AnsweredAttempt]) -> Found:
    """Store Meta's ids; returns the effects of earlier statuses for them."""
    known = {
        (one.attempt.message.number_id, one.outcome.wamid): (_organization(one), one.attempt.lease.id)
        for one in accepted
        if one.outcome.wamid
    }
    await matching.keep_ids(conn, known)
    return await matching.adopt_early(conn, known)


def _organization(one: AnsweredAttempt) -> UUID:
    return one.attempt.lease.organization_id


def _context(one: AnsweredAttempt) -> Context:
    context: Context = one.attempt.context
    return context


def _detail(outcome: CloudOutcome) -> str:
    return f"{outcome.detail} ({outcome.trace})" if outcome.trace else outcome.detail
