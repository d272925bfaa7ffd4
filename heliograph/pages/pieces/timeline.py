"""A timeline of steps, each with the time since the previous one (`kit.step` renders them)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate, pairwise
from typing import Generic, Protocol, TypeVar

import msgspec


class Dated(Protocol):
    """Something that happened."""

    @property
    def at(self) -> datetime: ...


Step = TypeVar("Step", bound=Dated)


class Line(msgspec.Struct, Generic[Step], frozen=True):
    """A step. `gap`: seconds since the previous one; `share`: of the longest gap, 0 to 10."""

    step: Step
    gap: float | None
    share: int


def lines(steps: Sequence[Step]) -> list[Line[Step]]:
    """Steps in order, with their gaps. A step with a time before that of its cause, such as a supplier's in whole
    seconds, is treated as immediate."""
    reached = accumulate((step.at for step in steps), max)
    gaps = [(late - early).total_seconds() for early, late in pairwise(reached)]
    longest = max(gaps, default=0.0)
    shares = [round(10 * gap / longest) if longest else 0 for gap in gaps]
    return [Line(step, gap, share) for step, gap, share in zip(steps, [None, *gaps], [0, *shares], strict=False)]
