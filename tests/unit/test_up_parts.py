"""A process of `heliograph up` is restarted however it ended or failed to start, and keeps its port."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from heliograph.base.embedded import files
from heliograph.base.embedded.install import Install, PostgresError, SystemUser
from heliograph.base.process.settings import Settings
from heliograph.http.server.server import CannotListen, bound
from heliograph.simulators.graph.simulator import GraphSimulator, quick
from heliograph.simulators.smsc.simulator import Smsc, SmscOptions
from heliograph.up import ports
from heliograph.up.errors import UpError
from heliograph.up.parts import Part, api_patience, worker_patience
from tests.ports import held_port


async def test_a_part_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    launch, refusals = asyncio.create_subprocess_exec, [errno.EMFILE, errno.ENOMEM]

    async def scarce(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        if refusals:
            number = refusals.pop(0)
            raise OSError(number, os.strerror(number))
        return await launch(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", scarce)
    said: list[str] = []
    ended = asyncio.Event()

    def say(line: str) -> None:
        said.append(line)
        if "ended" in line:
            ended.set()

    part = Part("api", ["--version"], os.environ, say)
    part.start()
    try:
        await asyncio.wait_for(ended.wait(), 60)
    finally:
        await part.stop()
    assert said[:3] == [
        "api cannot be started: Too many open files; trying again.",
        "api cannot be started: Cannot allocate memory; trying again.",
        "api ended (0); restarting it.",
    ]


async def test_it_is_ready_although_a_message_is_overdue() -> None:
    """Such as one whose supplier is paused: the API can be used nevertheless, to find out why."""
    worker = "down"
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal worker
        await reader.readuntil(b"\r\n\r\n")
        body = f'{{"status":"degraded","checks":{{"database":"ok","queue":"degraded","worker":"{worker}"}}}}'
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()
        asked.append(worker)
        worker = "ok"

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        await asyncio.wait_for(ports.answers(*server.sockets[0].getsockname(), asyncio.Event()), 60)
    assert asked == ["down", "ok"]


def test_what_drains_has_the_time_that_its_settings_promise() -> None:
    assert api_patience(Settings()) > 5 + 20
    assert worker_patience(Settings()) > 2 * 20
    patient = Settings(drain_seconds=300.0, not_ready_seconds=15.0)
    assert api_patience(patient) > 15 + 300
    assert worker_patience(patient) > 2 * 300


async def test_a_part_that_does_not_stop_is_waited_for_aloud_and_killed() -> None:
    said: list[str] = []
    with held_port() as port:  # nobody else takes it while nothing listens there
        command = ["simulate", "receiver", "--port", str(port), "--quiet"]
        for is_frozen, patience, quiet in ((True, 1.0, 0.1), (False, 60.0, 60.0)):
            part = Part("receiver", command, os.environ, said.append, patience=patience, quiet=quiet)
            part.start()
            await ports.listens("127.0.0.1", port)  # from then on SIGTERM is handled, and not before it runs again
            pid = part.pid
            assert pid is not None
            if is_frozen:
                os.kill(pid, signal.SIGSTOP)
            await part.stop()
            frozen = [
                f"Waiting for receiver (process {pid}) to stop, for 0.9 s at most.",
                f"receiver (process {pid}) has not stopped within 1 s, and is killed.",
            ]
            assert said == (frozen if is_frozen else []), "one that stops at once is not worth a word"
            said.clear()


def test_a_port_belongs_to_one_installation_before_its_api_listens() -> None:
    """Two that were started within seconds used to share one, and half of their requests reached the wrong database."""
    with held_port() as free, ports.reserved("127.0.0.1", free) as port:
        with pytest.raises(UpError, match="is in use"), ports.reserved("127.0.0.1", port):
            raise AssertionError
        with bound("127.0.0.1", port) as first, bound("127.0.0.1", port) as second:  # processes of one API
            first.listen()
            second.listen()


def test_a_reserved_port_is_free_in_the_end() -> None:
    with held_port() as free:
        assert can_be_taken("127.0.0.1", free)
        for _ in range(2):
            with ports.reserved("127.0.0.1", free) as port:
                assert port == free
        assert can_be_taken("127.0.0.1", free)
    with ports.reserved("127.0.0.1", 0) as one, ports.reserved("127.0.0.1", 0) as other:
        assert len({one, other, 0}) == 3


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "localhost"])
async def test_a_port_belongs_to_a_simulator_before_it_listens_and_after_it_was_killed(host: str) -> None:
    """It was free until it listened: whoever took it then kept out the simulator, which was restarted forever."""
    with held_port() as free, ports.reserved_if_free(host, free) as port:
        assert port == free
        smsc = Smsc(SmscOptions(host=host, port=port, shared=True))
        graph = GraphSimulator(quick(host=host, port=port, shared=True))
        for simulator in (smsc, graph, smsc):
            assert not can_be_taken(host, port)
            await simulator.start()
            assert not can_be_taken(host, port)
            await simulator.stop()
        assert not can_be_taken(host, port)
        with ports.reserved_if_free(host, port) as other:
            assert other != port


async def test_two_simulators_of_one_port_are_refused_unless_they_share_it() -> None:
    async with GraphSimulator(quick()) as graph:
        for simulator in (Smsc(SmscOptions(port=graph.port)), GraphSimulator(quick(port=graph.port))):
            with pytest.raises((OSError, CannotListen)):
                await simulator.start()


def can_be_taken(host: str, port: int) -> bool:
    """Whether another program, which does what servers usually do, can listen there."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
            sock.listen()
        except OSError:
            return False
    return True


def test_a_port_that_another_program_has_just_left_can_be_reserved() -> None:
    with held_port() as port:
        with (
            socket.create_server(("127.0.0.1", port)) as server,
            socket.create_connection(("127.0.0.1", port)) as client,
        ):
            accepted, _ = server.accept()
            accepted.close()  # first, so that its end remains visible for a minute
            assert client.recv(1) == b""
        with ports.reserved("127.0.0.1", port):
            assert not can_be_taken("127.0.0.1", port)
            with bound("127.0.0.1", port) as api:
                api.listen()


def test_nobody_listens_on_a_port_in_the_instant_in_which_it_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two starts in the same instant both had it: one had bound when the other had listened, and listened before
    that one was done."""
    refused: list[int | None] = []

    class Observed(socket.socket):
        has_listened = False

        def listen(self, *backlog: int) -> None:
            super().listen(*backlog)
            self.has_listened = True
            self._try()

        def shutdown(self, how: int) -> None:
            super().shutdown(how)
            self._try()

        def setsockopt(self, *option: Any) -> None:
            super().setsockopt(*option)
            self._try()

        def _try(self) -> None:
            """After each step, the other one tries to listen."""
            if not self.has_listened:
                return
            try:
                other.listen(1)
            except OSError as error:
                refused.append(error.errno)
            else:
                refused.append(None)

    with held_port() as port, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        with monkeypatch.context() as patched:
            patched.setattr(socket, "socket", Observed)
            with ports.reserved("127.0.0.1", port):
                assert refused == [errno.EADDRINUSE] * 4


@pytest.mark.parametrize("port", [0, 8080])
def test_an_address_of_a_family_that_the_kernel_does_not_have_is_told(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    def without_ipv6(*_: Any) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", without_ipv6)
    told = "::1 is not an address of this machine; choose another with --host"
    with pytest.raises(UpError, match=told), ports.reserved("::1", port):
        pass


async def test_no_database_is_created_for_a_user_without_a_name(tmp_path: Path) -> None:
    """As in a container started with an arbitrary user ID: initdb refuses it, and only says that it does not exist."""
    nobody = SystemUser(4_294_967_000, 4_294_967_000, switch=False)
    with pytest.raises(PostgresError, match="uid 4294967000 has none: add an account with this uid, start as another"):
        await files.initdb(files.Layout(tmp_path), nobody, Install(tmp_path, ""), sync=False)
    assert list(tmp_path.iterdir()) == []
