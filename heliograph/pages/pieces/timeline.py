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
    """A step. `before`: when the previous one was reached; `gap`: seconds since then; `share`: of the longest gap, 0 to
    10."""

    step: Step
    before: datetime | None
    gap: float | None
    share: int


def lines(steps: Sequence[Step]) -> list[Line[Step]]:
    """Steps in order, with their gaps. A step with a time before that of its cause, such as a supplier's in whole
    seconds, is treated as immediate."""
    reached = list(accumulate((step.at for step in steps), max))
    gaps = [(late - early).total_seconds() for early, late in pairwise(reached)]
    longest = max(gaps, default=0.0)
    shares = [round(10 * gap / longest) if longest else 0 for gap in gaps]
    befores = [None, *reached]
    return [Line(*one) for one in zip(steps, befores, [None, *gaps], [0, *shares], strict=False)]
