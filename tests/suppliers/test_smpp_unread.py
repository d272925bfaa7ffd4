"""A peer that reads nothing: its session has the same deadlines, and what waits for it is bounded.

And a process that reads nothing, because it is suspended: what arrived meanwhile is not late."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from smpp_peer import Line, Peer, PeerAccount, until

from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.smpp import link
from heliograph.suppliers.smpp.codec import pdu as p


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """Its socket buffers are small, so that ours fill up soon."""
    peer = Peer()
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listening.bind(("127.0.0.1", 0))
    peer.server = await asyncio.get_running_loop().create_server(lambda: Line(peer), sock=listening)
    peer.port = listening.getsockname()[1]
    yield peer
    await peer.stop()


async def stuff(peer: Peer, account: PeerAccount) -> link.Connection:
    """Request responses and read none, until no more can be written; then be silent."""
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
    """Its kernel acknowledges data until its buffer is full, and then keeps answering window probes for ever."""
    account = await PeerAccount(peer.port, enquire_seconds=0.2, silence_seconds=0.2, response_seconds=0.3).start()
    connection = await stuff(peer, account)
    account.submit()
    await until(connection.closed.done)
    # It was in no packet: nobody can have received it.
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
    while not connection.closed.done() and not line.transport.is_closing() and most < 200_000:
        line.transport.write(asked)
        await until(lambda: connection.closed.done() or not line.transport.get_write_buffer_size())
        await asyncio.sleep(0.01)
        most = max(most, connection.session.unsent)
    assert most < 100_000
    await until(lambda: peer.binds == 2)
    assert "reads nothing" in account.connector.health().last_error
    await account.connector.stop(grace=0.2)


HERE = Path(__file__).resolve().parent
#: How long it is stopped, and how long it waits for a response: much longer than submitting takes, in seconds.
STOPPED, PATIENCE = 7.0, 5.0
SUBMITTING = """
import asyncio
from smpp_peer import PeerAccount

async def main():
    account = await PeerAccount(
        {port}, response_seconds={seconds}, enquire_seconds={seconds}, silence_seconds={seconds}, max_timeouts=1
    ).start()
    account.submit(3)
    print(*(outcome.verdict.value for outcome in await account.ended(3)))
    await account.connector.stop(grace=0.2)

asyncio.run(main())
"""


@pytest.mark.lasts(8)
async def test_answers_that_came_while_the_process_stood_still_count() -> None:
    """Stopped, swapped out or moved to another machine: its timers then run before its sockets are read."""
    loop = asyncio.get_running_loop()
    taken: list[p.SubmitSm] = []

    def on_submit(line: Line, pdu: p.SubmitSm) -> None:
        taken.append(pdu)
        if len(taken) == 3:
            # A moment later it only waits for the responses.
            loop.call_later(0.1, process.send_signal, signal.SIGSTOP)
            loop.call_later(0.2, line.send, *(p.SubmitSmResp(one.sequence, 0, "id") for one in taken))
            loop.call_later(STOPPED, process.send_signal, signal.SIGCONT)

    peer = await Peer(on_submit).start()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SUBMITTING.format(port=peer.port, seconds=PATIENCE),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parents[1])))},
    )
    said, _ = await process.communicate()
    assert said.split()[-3:] == [b"accepted"] * 3
    await peer.stop()
