"""Fixtures shared by tests of several rules."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from heliograph.simulators.receiver import Receiver


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A webhook receiver that accepts everything."""
    made = Receiver()
    await made.start()
    yield made
    await made.stop()
