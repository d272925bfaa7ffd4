"""Fixtures shared by tests of several rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta

import pytest

from heliograph.base.database import clock
from heliograph.simulators.receiver import Receiver


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A webhook receiver that accepts everything."""
    made = Receiver()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def set_forward() -> Iterator[Callable[..., None]]:
    """Have the database's clock be further ahead, by some seconds, than this process knows; `ago`: or than it knew
    until so many seconds ago."""

    def by(seconds: float, *, ago: float | None = None) -> None:
        (own, asked), at = clock.reading(), clock.now()
        clock.note(at - timedelta(seconds=seconds), own=own, asked=asked, answered=asked)
        if ago is not None:
            asked -= int(ago * 1e9)
            clock.note(at - timedelta(seconds=ago), own=own, asked=asked, answered=asked)

    yield by
    clock.arm("")
