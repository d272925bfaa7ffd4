"""Fixtures for tests of suppliers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from smpp_peer import Peer

from tests.ports import held_port


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """An SMSC that follows instructions, on a port of any address."""
    with held_port() as port:
        peer = await Peer().start(port=port)
        yield peer
        await peer.stop()
