"""Evidence of attempts: the exact request and answer, for investigating a failure or a test.

Kept for failures and tests only, and per endpoint only as much as BYTES and RATE allow: receivers choose their answers,
and must not choose how much we store. Successes need none: the request can be rebuilt from event and secret.

The rule nobody may break: nothing here delays or fails an attempt's result. It is written in the same transaction, by
one more statement for batches with evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.http.answers import Answer, Failure, head
from heliograph.queue.leases import Lease
from heliograph.webhooks.delivery.attempts import Attempt, Evidence

#: Bytes of evidence allowed per endpoint at once, and per second after that: some 150 MB in the week they are kept.
BYTES, RATE = 262_144, 256.0
#: Bytes of a row besides the answer, and bytes kept of an answer's head.
ROW, HEAD = 1_000, 8_192
#: Number of endpoints whose allowance is remembered.
REMEMBERED = 10_000


class Allowance:
    """How much evidence may be kept for each endpoint now, within one worker."""

    def __init__(self) -> None:
        #: Bytes left, and as of when.
        self._left: dict[UUID, tuple[float, float]] = {}

    def take(self, endpoint_id: UUID, size: int, now: float) -> bool:
        """Whether `size` bytes may be kept; if so, they count. `now`: seconds, monotonic."""
        left, at = self._left.get(endpoint_id, (float(BYTES), now))
        left = min(float(BYTES), left + (now - at) * RATE)
        if size > left:
            self._left[endpoint_id] = (left, now)
            return False
        if len(self._left) >= REMEMBERED:
            self._left.clear()
        self._left[endpoint_id] = (left - size, now)
        return True


def of(url: str, sent: str, outcome: Answer | Failure) -> Evidence:
    """The evidence of an attempt. `sent`: the identifying and signing headers, as sent."""
    way = outcome.way
    address = None if way is None else way.address
    times = (None, None, None) if way is None else (way.dns, way.connect, way.tls)
    if isinstance(outcome, Failure):
        return Evidence(url, sent, b"", b"", address, *times, None)
    return Evidence(url, sent, head(outcome.start)[:HEAD], outcome.body, address, *times, outcome.first_byte)


def size(evidence: Evidence) -> int:
    """The bytes that evidence takes."""
    return ROW + len(evidence.head) + len(evidence.body)


# Evidence may have been stored already, by a commit whose answer was lost.
INSERT = """
INSERT INTO webhook_attempt_evidence (organization_id, begun_on, event_id, endpoint_id, started_at, url, sent, head,
                                      body, address, dns_ms, connect_ms, tls_ms, first_byte_ms)
SELECT organization_id, (started_at AT TIME ZONE 'UTC')::date, event_id, endpoint_id, started_at, url, sent, head, body,
       address, dns_ms, connect_ms, tls_ms, first_byte_ms
  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::timestamptz[], $5::text[], $6::text[], $7::bytea[], $8::bytea[],
              $9::text[], $10::float8[], $11::float8[], $12::float8[], $13::float8[])
       AS item (organization_id, event_id, endpoint_id, started_at, url, sent, head, body, address, dns_ms, connect_ms,
                tls_ms, first_byte_ms)
ON CONFLICT DO NOTHING
"""


async def store(conn: Connection, tried: Sequence[tuple[Lease, Attempt]]) -> None:
    """Store the evidence of attempts, in the caller's transaction."""
    found = [(lease, attempt, attempt.evidence) for lease, attempt in tried if attempt.evidence is not None]
    if not found:
        return
    await conn.execute(
        INSERT,
        [lease.organization_id for lease, _, _ in found],
        [lease.id for lease, _, _ in found],
        [lease.line for lease, _, _ in found],
        [attempt.started_at for _, attempt, _ in found],
        [one.url for _, _, one in found],
        [one.sent for _, _, one in found],
        [one.head for _, _, one in found],
        [one.body for _, _, one in found],
        [one.address for _, _, one in found],
        [_ms(one.dns) for _, _, one in found],
        [_ms(one.connect) for _, _, one in found],
        [_ms(one.tls) for _, _, one in found],
        [_ms(one.first_byte) for _, _, one in found],
    )


class StoredEvidence(msgspec.Struct, frozen=True):
    """Stored evidence: the answer's head and body, and the duration of each step, milliseconds."""

    url: str
    sent: str
    head: bytes
    body: bytes
    address: str | None
    dns_ms: float | None
    connect_ms: float | None
    tls_ms: float | None
    first_byte_ms: float | None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
