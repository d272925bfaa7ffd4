"""A peer that reads nothing: its session has the same deadlines, and what waits for it has a bound."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from smpp_peer import Line, Peer, PeerAccount, until

from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.smpp import link
from heliograph.suppliers.smpp.codec import pdu as p


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """Its sockets hold little, so that ours are soon full."""
    peer = Peer()
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listening.bind(("127.0.0.1", 0))
    peer.server = await asyncio.get_running_loop().create_server(lambda: Line(peer), sock=listening)
    peer.port = listening.getsockname()[1]
    yield peer
    await peer.stop()


async def stuff(peer: Peer, account: PeerAccount) -> link.Connection:
    """Ask for answers, and read none, until no more can be written; then be silent."""
    connection = account.connector._transmitters[0].connection
    assert connection is not None
    line = peer.lines[0]
    line.transport.pause_reading()
    asked = p.EnquireLink(1).encode() * 10_000
    while not connection._paused:
        line.transport.write(asked)
        await until(lambda: connection._paused or not line.transport.get_write_buffer_size())
        await asyncio.sleep(0.01)
    return connection


async def test_a_peer_that_stops_reading_loses_its_session(peer: Peer) -> None:
    """Its kernel acknowledges what it is sent until it is full, and from then on says that it is there: for ever."""
    account = await PeerAccount(peer.port, enquire_seconds=0.2, silence_seconds=0.2, response_seconds=0.3).start()
    connection = await stuff(peer, account)
    account.submit()
    await until(connection.closed.done, 10.0)
    # It was in no packet: nobody can have got it.
    (outcome,) = await account.ended()
    assert outcome.verdict in (Verdict.UNREACHABLE, Verdict.UNKNOWN)
    await until(lambda: peer.binds == 2)
    await account.connector.stop(grace=0.2)


async def test_what_waits_for_a_peer_that_reads_nothing_has_a_bound(peer: Peer) -> None:
    account = await PeerAccount(peer.port).start()
    connection = await stuff(peer, account)
    line = peer.lines[0]
    asked = p.EnquireLink(1).encode() * 10_000
    most = 0
    while not connection.closed.done() and most < 200_000:
        line.transport.write(asked)
        await until(lambda: connection.closed.done() or not line.transport.get_write_buffer_size())
        await asyncio.sleep(0.01)
        most = max(most, connection.session.unsent)
    assert most < 100_000
    await until(lambda: peer.binds == 2)
    assert "reads nothing" in account.connector.health().last_error
    await account.connector.stop(grace=0.2)
