"""Web processes: several on one port count exactly together, and one that is stopped finishes what it has begun."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings, from_environment
from heliograph.http.server.server import CannotListen
from heliograph.serve import OTHER_FILES, bound, serve, within_descriptors
from tests import forks
from tests.forks import Forked
from tests.ports import held_port
from tests.processes import environment, until_true

from .conftest import Api, make_tenant, running


@contextlib.asynccontextmanager
async def processes(database_url: str, *, number: int, **settings: str) -> AsyncIterator[tuple[str, list[Forked]]]:
    """Web processes that share a port."""
    given = {
        "HELIOGRAPH_DATABASE_URL": database_url,
        "HELIOGRAPH_SECRET_KEY": "a secret key for tests of the API only, long",
        "HELIOGRAPH_NOT_READY_SECONDS": "0",
        **{f"HELIOGRAPH_{name.upper()}": value for name, value in settings.items()},
    }
    with held_port() as port:
        started = [
            await forks.start("api", "--port", str(port), environment=environment(**given)) for _ in range(number)
        ]
        try:
            async with asyncio.timeout(120):
                for process in started:
                    await listening(process, port)
            yield f"http://127.0.0.1:{port}/v1", started
        finally:
            for process in started:
                if process.returncode is None:
                    process.kill()
                await process.wait()


async def listening(process: Forked, port: int) -> None:
    """Wait until this process listens on the port."""
    wanted = f"{port:04X}"
    while process.returncode is None:
        inodes = set()
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{process.pid}/fd"):
                inodes.add(os.readlink(f"/proc/{process.pid}/fd/{number}").removeprefix("socket:[").removesuffix("]"))
        with open("/proc/net/tcp") as table:  # noqa: ASYNC230 (a file of the kernel)
            rows = [line.split() for line in table][1:]
        if any(row[1].endswith(":" + wanted) and row[3] == "0A" and row[9] in inodes for row in rows):
            return
        await asyncio.wait([asyncio.create_task(process.wait())], timeout=0.02)
    pytest.fail(f"the process ended with {process.returncode}")


async def test_two_processes_are_exact_in_quota_rate_and_idempotency(database_url: str, pool: Pool) -> None:
    tenant = await make_tenant(pool, amount=80)
    #: Responses by the window in which they were counted, which is identified by its end.
    windows: dict[str, list[int]] = {}
    async with (
        processes(database_url, number=2, rate_sms_send="160") as (url, _),
        # A connection for each request, so that both processes get some.
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session,
    ):

        async def post(number: int) -> tuple[int, str]:
            headers = tenant.headers | {"Idempotency-Key": f"key-{number}"}
            body = {"to": "+258841234567", "message": "Hello"}
            async with session.post(url + "/sms/send", json=body, headers=headers) as answer:
                answered = await answer.json()
                windows.setdefault(answer.headers["x-ratelimit-reset"], []).append(answer.status)
                return answer.status, answered["message"]["id"] if answer.status == 202 else answered["error"]["code"]

        # Each key twice, 100 keys, a quota of 80, then 40 more requests than the window has. Whether the minute ends
        # meanwhile is chance; each window is exact.
        first = await asyncio.gather(*(post(number) for number in [*range(100), *range(60)]))
        rest = await asyncio.gather(*(post(number) for number in range(40)))
    accepted = [answer for status, answer in first if status == 202]
    assert len(set(accepted)) == 80
    assert {answer for status, answer in first if status != 202} <= {"quota_exceeded"}
    assert {answer for _, answer in rest} <= {"rate_limit_exceeded", "quota_exceeded", *accepted}
    for answered in windows.values():
        assert answered.count(429) == max(0, len(answered) - 160)
    assert await pool.fetchval("SELECT used FROM quotas") == 80
    assert await pool.fetchval("SELECT count(*) FROM messages") == 80


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_process_that_is_told_to_stop_answers_what_it_has_begun(
    database_url: str, pool: Pool, kind: signal.Signals
) -> None:
    tenant = await make_tenant(pool)
    async with processes(database_url, number=1, body_deadline_seconds="60") as (url, (process,)):
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"to":"+258841234567","message":"Hello"}'
        head = (
            f"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nx-api-key: {tenant.secret}\r\nIdempotency-Key: k\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body[:10])
        await writer.drain()
        async with asyncio.timeout(120):
            # By then the head has been read.
            while not await pool.fetchval("SELECT EXISTS (SELECT FROM api_keys WHERE last_used_at IS NOT NULL)"):
                await pool.execute("SELECT pg_sleep(0.01)")
        process.send_signal(kind)
        async with asyncio.timeout(120):
            assert await idle_reader.read() == b""
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.write(body[10:])
        async with asyncio.timeout(120):
            answer = await reader.read()
            assert await process.wait() == 0
        assert answer.startswith(b"HTTP/1.1 202 ")
        assert b"\r\nconnection: close\r\n" in answer
        writer.close()
        idle_writer.close()


async def test_before_it_takes_no_more_it_says_so(database_url: str, pool: Pool) -> None:
    tenant = await make_tenant(pool)
    async with (
        processes(database_url, number=1, not_ready_seconds="120") as (url, (process,)),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        root = url.removesuffix("/v1")

        async def ask(address: str) -> tuple[int, str, bool]:
            """(status, body, whether the connection closes)"""
            async with session.get(address) as answer:
                return answer.status, await answer.text(), answer.headers.get("Connection") == "close"

        assert await ask(root + "/readyz") == (200, '{"status":"ready"}', False)
        assert await ask(root + "/livez") == (200, '{"status":"live"}', False)
        process.send_signal(signal.SIGTERM)

        async def is_stopping() -> bool:
            return await ask(root + "/readyz") == (503, '{"status":"stopping"}', True)

        await until_true(is_stopping)
        assert await ask(root + "/livez") == (200, '{"status":"live"}', True)
        assert (await ask(url + "/health"))[0] == 503
        # Requests that come all the same, on new connections too, are served.
        body = {"to": "+258841234567", "message": "Hello"}
        headers = tenant.headers | {"Idempotency-Key": "k"}
        async with session.post(url + "/sms/send", json=body, headers=headers) as answer:
            assert (answer.status, answer.headers["Connection"]) == (202, "close")
        # After a second signal it does not wait.
        os.kill(process.pid, signal.SIGTERM)
        async with asyncio.timeout(120):
            assert await process.wait() == -signal.SIGTERM


async def test_after_it_has_said_so_it_ends(database_url: str) -> None:
    async with processes(database_url, number=1, not_ready_seconds="0.2") as (url, (process,)):
        async with aiohttp.request("GET", url + "/") as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(120):
            assert await process.wait() == 0


async def test_the_second_signal_ends_it_at_once(database_url: str) -> None:
    async with processes(database_url, number=1) as (url, (process,)):
        port = int(url.rsplit(":", 1)[1].split("/")[0])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(120):
            with contextlib.suppress(ConnectionError):
                while True:
                    await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            assert await process.wait() in (0, -signal.SIGTERM)
        writer.close()


async def test_a_process_that_still_waits_for_its_database_takes_no_connections() -> None:
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()

    database = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = "postgresql://heliograph:password@{}:{}/heliograph".format(*database.sockets[0].getsockname())
    with held_port() as port:
        settings = from_environment({"HELIOGRAPH_DATABASE_URL": url, "HELIOGRAPH_SECRET_KEY": "k" * 40})
        serving = asyncio.create_task(serve(settings, port=port, own_process=False))
        try:
            await asyncio.wait_for(asked.wait(), 60)
            # Another process on this port would answer; this one would let it wait.
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            database.close()


async def test_an_address_that_is_taken_is_an_error(database_url: str) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            bound("127.0.0.1", port)
        # The console's own address is shown, not that of the API.
        given = {"HELIOGRAPH_DATABASE_URL": database_url, "HELIOGRAPH_SECRET_KEY": "k" * 40}
        settings = from_environment(given | {"HELIOGRAPH_CONSOLE_LISTEN": f"127.0.0.1:{port}"})
        with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1:{port}: "):
            await serve(settings, port=0, own_process=False)
    async with running(database_url) as api:
        assert isinstance(api, Api)


#: The limits of a process's open files, soft and hard; the soft one from then on, and the connections.
FILES = [
    ((1024, resource.RLIM_INFINITY), 10_752, 8192),
    ((1024, 1_048_576), 10_752, 8192),
    ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), resource.RLIM_INFINITY, 8192),
    ((20_000, 20_000), 20_000, 8192),
    ((1024, 4096), 4096, 2867),
    ((1024, 1024), 1024, 409),
    ((256, 256), 256, 102),
    ((8, 8), 8, 3),
]


@pytest.mark.parametrize(("limits", "soft", "connections"), FILES)
def test_a_process_has_no_more_connections_than_files(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], soft: int, connections: int
) -> None:
    """With none left, it could close no idle connection for a new one: it can only be accepted with one more file. Nor
    could it reach the database."""
    now = [limits]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: now[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, given: now.append(given))
    settings = within_descriptors(Settings())
    assert now[-1] == (soft, limits[1])
    assert settings.max_connections == connections
    assert settings.max_connections_per_address == max(1, 1024 * connections // 8192)
    if 0 <= soft < 10_752:
        assert connections * 5 // 4 + min(OTHER_FILES, soft // 2) <= soft
