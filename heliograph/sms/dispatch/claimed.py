"""A claimed message with everything needed to decide about it, read for a whole claim at once.

The rule nobody may break: what was checked when a message was accepted is read again here, and nothing is cached from
an earlier read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.queue.leases import Lease
from heliograph.sealing import text_keys

#: Status of a message that no supplier is known to have accepted.
UNSENT = "accepted"
#: Messages valid for no longer than this are as urgent as one-time codes, whatever their class.
SHORT_LIVED = timedelta(minutes=15)
#: Characters that always fit into one segment: two code units each, of 70.
ONE_SEGMENT = 35


class BegunSeries(msgspec.Struct, frozen=True, gc=False):
    """A series of attempts that left a supplier with some of a message's segments. The fields are those of a
    `ClaimedMessage`."""

    series: int
    series_at: datetime
    reference: int
    parts: int
    taken: Sequence[int]


class ClaimedMessage(msgspec.Struct, frozen=True, gc=False):
    """A claimed message. Fields that begin with `attempt` describe its last attempt; attempt 0 means that it has
    none."""

    lease: Lease
    status: str | None
    mode: str
    recipient: str
    sender: str
    encoding: str
    traffic_class: str
    guarantee: str
    accepted_at: datetime
    expires_at: datetime | None
    body: str | None
    organization_state: str
    sender_status: str | None
    opted_out: bool
    at: datetime
    attempt: int
    attempt_supplier: UUID | None
    attempt_state: str | None
    started_at: datetime | None
    reference: int | None
    #: The first attempt of the series, when it began, and the number of segments of the whole message in it.
    series: int
    series_at: datetime | None
    parts: int
    #: Segments that were written but not answered; None: all that the attempt was to send.
    doubtful: Sequence[int] | None
    #: Segments that the supplier has.
    taken: Sequence[int] | None
    #: When the last attempt's supplier first deferred the message.
    busy_since: datetime | None
    #: Suppliers that refused the message in any of its attempts.
    refused: Sequence[UUID] | None
    #: How many of its attempts ended without an answer.
    unknowns: int
    #: Its organization's quiet hours for marketing.
    quiet_hours: str
    #: Suppliers that an operator passed over.
    passed: Sequence[UUID] = ()
    #: Its text exists but cannot be opened now: it waits, whatever its validity.
    is_locked: bool = False
    #: By supplier, its last series other than the one of the last attempt.
    begun: Mapping[UUID, BegunSeries] | None = None

    def resumed(self, supplier_id: UUID) -> ClaimedMessage:
        """The message as this supplier has it, if others that took nothing of it, or not all, were tried since."""
        found = None if self.begun is None or supplier_id == self.attempt_supplier else self.begun.get(supplier_id)
        if found is None:
            return self
        return msgspec.structs.replace(
            self, attempt_supplier=supplier_id, attempt_state="busy", **msgspec.structs.asdict(found)
        )

    @property
    def is_unsent(self) -> bool:
        """True if no supplier is known to have accepted it."""
        return self.status == UNSENT

    @property
    def was_unknown(self) -> bool:
        """True if one of its attempts ended without an answer, so that a supplier may have it, whatever happened
        later."""
        return self.unknowns > 0

    @property
    def may_leave(self) -> bool:
        """True if nothing read with it forbids sending it."""
        return (
            self.is_unsent
            and self.body is not None
            and not self.opted_out
            and self.sender_status == "approved"
            and self.organization_state not in ("suspended", "closed")
        )

    @property
    def is_short_lived(self) -> bool:
        """True for a one-time code, or a message as urgent as one."""
        return self.traffic_class == "otp" or (
            self.expires_at is not None and self.expires_at - self.accepted_at <= SHORT_LIVED
        )

    def waited(self, since: datetime | None) -> float:
        """Seconds since a given time: when it became due, or when its supplier first deferred it; 0 for None."""
        return 0.0 if since is None else (self.at - since).total_seconds()

    @property
    def in_doubt(self) -> tuple[int, ...]:
        """Segments of a long message that the supplier may or may not have."""
        have = set(self.taken or ())
        asked = range(1, self.parts + 1) if self.doubtful is None else self.doubtful
        return tuple(number for number in asked if number not in have)


# Attempts are read only for rows that have one: OFFSET makes PostgreSQL evaluate that condition first, since sorting
# empty sets of attempts and parts took 2.6 µs per message. LIMIT keeps each look-up a look-up: a plan made while a
# table is empty could otherwise read all of it once for a batch, and still do so when it is full.
DUE = """
SELECT m.status, m.mode, m.recipient, m.sender, m.encoding, m.class, m.guarantee, m.accepted_at, m.expires_at, m.body,
       o.state AS organization_state, s.status AS sender_status, silence.since IS NOT NULL AS opted_out, now() AS at,
       coalesce(a.attempt, 0) AS attempt, a.target_id AS attempt_supplier, a.state AS attempt_state, a.started_at,
       a.reference, coalesce(a.series, 0) AS series, a.series_at, coalesce(a.parts, 1) AS parts, a.doubtful,
       taken.parts AS taken, a.busy_since, a.refused, coalesce(a.unknowns, 0) AS unknowns, o.quiet_hours
  FROM unnest($1::uuid[], $2::uuid[], $3::boolean[]) WITH ORDINALITY AS item (organization_id, id, tried, n)
  LEFT JOIN LATERAL (SELECT * FROM messages
                      WHERE organization_id = item.organization_id AND id = item.id LIMIT 1) m ON true
  LEFT JOIN LATERAL (SELECT state, quiet_hours FROM organizations WHERE id = item.organization_id LIMIT 1) o ON true
  LEFT JOIN LATERAL (SELECT status FROM sender_ids
                      WHERE organization_id = item.organization_id AND id = m.sender_id LIMIT 1) s ON true
  LEFT JOIN LATERAL (SELECT since FROM opted_out_since(item.organization_id, m.recipient)
                      WHERE (SELECT count(*) FROM automatic_replies
                              WHERE since IS NOT NULL AND organization_id = item.organization_id
                                AND recipient = m.recipient AND message_id = item.id) = 0 LIMIT 1) silence ON true
  LEFT JOIN LATERAL (
       SELECT last.* FROM (SELECT item.organization_id, item.id WHERE item.tried OFFSET 0) AS tried
        CROSS JOIN LATERAL (
              SELECT attempt, target_id, state, started_at, reference, coalesce(continues, attempt) AS series, parts,
                     doubtful, min(started_at) OVER (PARTITION BY coalesce(continues, attempt)) AS series_at,
                     min(started_at) FILTER (WHERE state = 'busy') OVER (PARTITION BY target_id) AS busy_since,
                     array_agg(target_id) FILTER (WHERE state = 'refused') OVER () AS refused,
                     count(*) FILTER (WHERE state = 'unknown') OVER () AS unknowns
                FROM attempts WHERE organization_id = tried.organization_id AND message_id = tried.id
               ORDER BY attempt DESC LIMIT 1) last) a ON true
  LEFT JOIN LATERAL (
       SELECT kept.* FROM (SELECT item.id, a.series WHERE a.parts > 1 OFFSET 0) AS long
        CROSS JOIN LATERAL (
              SELECT array_agg(DISTINCT part) AS parts FROM sms_parts
               WHERE message_id = long.id AND parts > 1 AND attempt = long.series) kept) taken ON true
 ORDER BY item.n
"""
# Read only for long messages with several attempts: usually there is none, or one. The last one does not tell whether
# there are other series: it may go on with the first, and be handed the text as a whole.
BEGUN = """
SELECT item.id, begun.supplier_id, begun.series, a.series_at, a.reference, begun.parts, begun.taken
  FROM unnest($1::uuid[], $2::uuid[], $3::smallint[]) AS item (organization_id, id, series)
       CROSS JOIN LATERAL (
       SELECT supplier_id, attempt AS series, max(parts) AS parts, array_agg(DISTINCT part) AS taken FROM sms_parts
        WHERE message_id = item.id AND parts > 1 AND attempt <> item.series
        GROUP BY supplier_id, attempt) begun
       CROSS JOIN LATERAL (
       SELECT min(started_at) AS series_at, coalesce(min(reference), 0) AS reference FROM attempts
        WHERE organization_id = item.organization_id AND message_id = item.id
          AND coalesce(continues, attempt) = begun.series) a
 WHERE a.series_at IS NOT NULL
 ORDER BY begun.series
"""
# Read only for messages tried again: passing over a supplier counts as a try.
PASSED = "SELECT id, passed FROM queue WHERE id = ANY ($1) AND kind || '' = 'sms' AND passed IS NOT NULL"


async def load(conn: Connection, claimed: Sequence[Lease]) -> list[ClaimedMessage]:
    """The claimed messages, in their order, with their texts opened."""
    rows = await conn.fetch(
        DUE,
        [lease.organization_id for lease in claimed],
        [lease.id for lease in claimed],
        [lease.attempt > 0 for lease in claimed],
    )
    found = [ClaimedMessage(lease, *row.values()) for lease, row in zip(claimed, rows, strict=True)]
    if any(text_keys.is_marked(one.body) for one in found):
        items = [text_keys.Item(one.lease.organization_id, one.lease.id, one.body) for one in found]
        opened = await text_keys.read(conn, "messages", items)
        found = [
            msgspec.structs.replace(
                one,
                body=text,
                is_locked=text is None and one.body is not None and one.lease.organization_id in opened.locked,
            )
            for one, text in zip(found, opened.texts, strict=True)
        ]
    if several := [one for one in found if one.attempt > 1 and one.is_unsent and len(one.body or "") > ONE_SEGMENT]:
        begun = await _begun(conn, several)
        found = [
            msgspec.structs.replace(one, begun=begun[one.lease.id]) if one.lease.id in begun else one for one in found
        ]
    again = [lease.id for lease in claimed if lease.tries]
    passed = {row["id"]: row["passed"] for row in await conn.fetch(PASSED, again)} if again else {}
    if not passed:
        return found
    return [msgspec.structs.replace(one, passed=passed.get(one.lease.id, ())) for one in found]


async def _begun(conn: Connection, messages: Sequence[ClaimedMessage]) -> dict[UUID, dict[UUID, BegunSeries]]:
    rows = await conn.fetch(
        BEGUN,
        [one.lease.organization_id for one in messages],
        [one.lease.id for one in messages],
        [one.series for one in messages],
    )
    begun: dict[UUID, dict[UUID, BegunSeries]] = {}
    for id, supplier_id, *series in rows:
        begun.setdefault(id, {})[supplier_id] = BegunSeries(*series)
    return begun
