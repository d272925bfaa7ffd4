"""The conversion rule: codes that are never entered. No I/O and no clock, as in `windows`.

An organization that reports which messages converted (`POST /v1/sms/messages/{messageId}/converted`) provides a measure
that receipts cannot fake. If a block of numbers converts far worse than the rest of the organization's traffic, nobody
there is waiting for a code. This is judged with confidence: the upper end of the Wilson interval has to lie below half
of the baseline, so a few messages prove nothing.

The rule nobody may break: a message counts only once it has had time to convert; otherwise all new traffic would look
bad. And good conversion never exempts a range from the rules of `windows`: it can be faked.
"""

from __future__ import annotations

import math
from collections import deque
from uuid import UUID

import msgspec

#: Seconds after which a message that has not converted counts as such, and seconds for which it counts.
MATURE, SPAN = 300.0, 3600.0
#: Minimum number of messages of a block to be judged, and of the organization's other messages to form a baseline.
LEAST, BASELINE = 20, 100
#: A block below this fraction of the baseline is bad.
PART = 0.5
#: 95 %, one-sided.
Z = 1.645
#: Maximum number of messages remembered, for all organizations.
MOST = 100_000


class _Sent(msgspec.Struct, gc=False):
    at: float
    place: float
    organization_id: UUID
    number: str
    converted: bool = False
    counted: bool = False


class _Rates(msgspec.Struct):
    """Results of an organization's mature messages: [sent, converted], by block and in all."""

    blocks: dict[str, list[int]] = {}
    total: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    latest: dict[str, _Sent] = {}


class Conversions:
    """Tracks organizations that report conversions; the others cost nothing."""

    def __init__(self, *, most: int = MOST) -> None:
        self._most = most
        self._of: dict[UUID, _Rates] = {}
        self._waiting: deque[_Sent] = deque()
        self._mature: deque[_Sent] = deque()

    def sent(self, organization_id: UUID, number: str, *, at: float, place: float) -> None:
        """Note that a message is about to be sent. `place`: its position in the order of acceptance. It may be seen
        several times, as while it waits for its number's network: the same place counts once."""
        if self._waiting and self._waiting[-1].at > at + MATURE:
            # The clock has been set back: nothing would become mature, or old, until that time comes again.
            self._waiting.clear()
            self._mature.clear()
            self._of = {id: _Rates() for id in self._of}
        rates = self._of.get(organization_id)
        self._turn(at)
        if rates is None:
            return
        known = rates.latest.get(number)
        if known is not None and place <= known.place:
            return
        one = _Sent(at, place, organization_id, number)
        rates.latest[number] = one
        self._waiting.append(one)

    def converted(self, organization_id: UUID, number: str, *, at: float) -> None:
        """Note that the latest message to this number converted."""
        rates = self._of.setdefault(organization_id, _Rates())
        self._turn(at)
        one = rates.latest.get(number)
        if one is None or one.converted:
            return
        one.converted = True
        if one.counted:
            rates.blocks[_block(number)][1] += 1
            rates.total[1] += 1

    def is_bad(self, organization_id: UUID, number: str) -> bool:
        """Whether the block of this number converts far worse than the organization's other messages."""
        rates = self._of.get(organization_id)
        if rates is None:
            return False
        sent, converted = rates.blocks.get(_block(number), (0, 0))
        others = rates.total[0] - sent
        if sent < LEAST or others < BASELINE:
            return False
        baseline = (rates.total[1] - converted) / others
        return wilson_upper(converted, sent) < PART * baseline

    def _turn(self, at: float) -> None:
        """Count messages that have become mature, and forget old ones."""
        waiting, mature = self._waiting, self._mature
        while waiting and (waiting[0].at <= at - MATURE or len(waiting) > self._most):
            one = waiting.popleft()
            rates = self._of[one.organization_id]
            one.counted = True
            block = rates.blocks.setdefault(_block(one.number), [0, 0])
            for counts in (block, rates.total):
                counts[0] += 1
                counts[1] += one.converted
            mature.append(one)
        while mature and (mature[0].at <= at - SPAN or len(mature) > self._most):
            one = mature.popleft()
            rates = self._of[one.organization_id]
            block = rates.blocks[_block(one.number)]
            for counts in (block, rates.total):
                counts[0] -= 1
                counts[1] -= one.converted
            if not block[0]:
                del rates.blocks[_block(one.number)]
            if rates.latest.get(one.number) is one:
                del rates.latest[one.number]


def wilson_upper(successes: int, n: int, z: float = Z) -> float:
    """The upper end of Wilson's interval for a proportion."""
    p = successes / n
    middle = p + z * z / (2 * n)
    margin = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle + margin) / (1 + z * z / n)


def _block(number: str) -> str:
    return number[1:-4]
