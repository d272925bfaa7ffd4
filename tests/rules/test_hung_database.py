"""A database that hangs counts as unavailable: waiting callers are told, its connections closed, and it is retried."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from heliograph.base.database import pulse
from heliograph.base.database.pool import CLIENT_SETTINGS, SESSION_SETTINGS, Connection, Pool, is_down, open_pool
from heliograph.base.database.url import Host, shown
from heliograph.base.errors import Unavailable
from heliograph.base.network.connecting import DEAD_PEER_TIMEOUTS, Connector, connect
from heliograph.base.process.settings import Settings
from heliograph.cli.terminal import process
from heliograph.cli.terminal.console import connection
from heliograph.cli.terminal.process import prepared
from heliograph.queue.runner import CHANNEL, listen
from heliograph.sms.accepting.accept import Acceptor
from tests.certificates import Authority
from tests.processes import until, until_true
from tests.rules.factories import blocked, organization, send
from tests.wire import Wire, wire

#: In the URL: so long that a process which waits for a silent host's own timeout exceeds LONG.
HANGS = "connect_timeout=600"
#: Longer than anything takes here, and shorter than waiting for a statement's end (STATEMENT).
LONG = 100.0
STATEMENT = 600.0


@contextlib.asynccontextmanager
async def watched(url: str) -> AsyncIterator[Pool]:
    """A pool under a pulse, as in every process."""
    pool = await open_pool(url, size=2, statement=STATEMENT)
    task = asyncio.create_task(pulse.watch(pool))
    try:
        yield pool
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        pool.terminate()


async def accepted(acceptor: Acceptor, one: Any) -> Any:
    """The response, once there is one."""
    async with asyncio.timeout(LONG):
        while True:
            try:
                return await acceptor.accept(one)
            except Unavailable:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_whoever_waits_for_a_hung_database_is_told_that_it_is_away(
    pool: Pool, database_url: str, tmp_path: Path, encrypted: bool
) -> None:
    actor = await organization(pool)
    context: ssl.SSLContext | None = None
    if encrypted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(Authority(tmp_path).issue("localhost"))
    async with wire(database_url, tls=context) as (line, url), watched(url) as hung:
        acceptor = Acceptor(hung)
        assert (await acceptor.accept(send(actor, key_name="before"))).status == 202
        assert (line.encrypted > 0) is encrypted
        line.freeze()
        # One is in its batch, one waits for the next, one wants a connection, and the others come too late.
        async with asyncio.timeout(LONG):
            held = [asyncio.create_task(acceptor.accept(send(actor, key_name=f"{n}"))) for n in range(2)]
            held.append(asyncio.create_task(hung.fetchval("SELECT 1")))
            failed = await asyncio.gather(*held, return_exceptions=True)
            with pytest.raises(Unavailable) as refused:
                await acceptor.accept(send(actor, key_name="0"))
        assert refused.value.headers == {"retry-after": "1"}
        assert [type(error) for error in failed[:2]] == [Unavailable, Unavailable]
        assert isinstance(failed[2], BaseException)
        assert is_down(failed[2])
        assert hung.get_size() == 0
        line.thaw()
        assert not (await accepted(acceptor, send(actor, key_name="after"))).replayed


async def test_a_commit_whose_answer_never_came_is_answered_by_the_same_key(pool: Pool, database_url: str) -> None:
    actor = await organization(pool)
    async with wire(database_url) as (line, url), watched(url) as hung:
        acceptor = Acceptor(hung)
        async with pool.acquire() as conn, conn.transaction():
            await conn.execute("SELECT FROM quotas FOR UPDATE")
            post = asyncio.create_task(acceptor.accept(send(actor, key_name="k")))
            await blocked(pool)
            line.freeze(answers_only=True)
        async with asyncio.timeout(LONG):
            with pytest.raises(Unavailable):
                await post
        await until_true(lambda: pool.fetchval("SELECT count(*) = 1 FROM messages"))
        line.thaw()
        answer = await accepted(acceptor, send(actor, key_name="k"))
        assert (answer.status, answer.replayed) == (202, True)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1
    assert await pool.fetchval("SELECT used FROM quotas") == 1


async def test_a_statement_that_is_given_up_takes_its_connection_with_it(pool: Pool, database_url: str) -> None:
    async with wire(database_url) as (line, url):
        small = await open_pool(url, size=1, patience=LONG)
        try:
            line.freeze(answers_only=True)
            with pytest.raises(TimeoutError):
                await small.fetchval("SELECT 1", timeout=0.2)
            line.thaw()
            made = line.made
            async with asyncio.timeout(LONG):
                assert await small.fetchval("SELECT 2") == 2
            assert line.made == made + 1  # and none that asked for a cancellation
        finally:
            small.terminate()


async def test_a_connection_that_ends_before_a_prepared_statement_runs_is_away(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "SELECT 'never asked before'"
    inherited: Any = asyncpg.Connection._get_statement  # type: ignore[attr-defined]

    async def prepared(connection: Any, query: str, *arguments: Any, **options: Any) -> Any:
        statement = await inherited(connection, query, *arguments, **options)
        if query == asked:  # other users need connections meanwhile, such as those that create databases for tests
            connection.terminate()
        return statement

    async with pool.acquire() as conn:
        monkeypatch.setattr(asyncpg.Connection, "_get_statement", prepared)
        with pytest.raises(asyncpg.InterfaceError) as said:
            await conn.fetchval(asked)
        monkeypatch.undo()
    assert is_down(said.value)


async def stop_with_locks(conn: Connection, line: Wire) -> None:
    """Cut a session off in the middle of a transaction that has locked quotas."""
    await conn.execute("BEGIN; SELECT FROM quotas FOR UPDATE")
    line.freeze()


async def find_it_ended(conn: Connection, line: Wire) -> None:
    """Reach the server again, which has ended the session."""
    line.thaw()
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)) as said:
        await conn.execute("COMMIT")
    assert is_down(said.value)


async def test_who_stops_in_the_middle_of_a_transaction_keeps_nobody_waiting(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine has stopped, or its network is gone: the server ends its session, and with it its locks."""
    monkeypatch.setitem(SESSION_SETTINGS, "idle_in_transaction_session_timeout", "100ms")
    actor = await organization(pool)
    async with wire(database_url) as (line, url):
        stopped = await open_pool(url, size=1)
        try:
            async with stopped.acquire() as conn:
                await stop_with_locks(conn, line)
                assert not (await accepted(Acceptor(pool), send(actor))).replayed
                await find_it_ended(conn, line)
        finally:
            stopped.terminate()


async def test_a_command_that_stops_in_the_middle_of_a_transaction_keeps_nobody_waiting(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has suspended it, or their connection to its machine is gone."""
    monkeypatch.setitem(CLIENT_SETTINGS, "idle_in_transaction_session_timeout", "100ms")
    actor = await organization(pool)
    async with wire(database_url) as (line, url), connection(url) as conn:
        await stop_with_locks(conn, line)
        assert not (await accepted(Acceptor(pool), send(actor))).replayed
        await find_it_ended(conn, line)


async def test_who_stops_before_running_a_prepared_statement_keeps_nobody_waiting(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the server, its session is neither idle nor running a statement: no time limit of its own applies."""
    monkeypatch.setattr(pulse, "STOPPED", 0.1)
    actor = await organization(pool)
    async with pool.acquire() as idle, wire(database_url) as (line, url):
        pid = await idle.fetchval("SELECT pg_backend_pid()")
        stopped = await open_pool(url, size=1, statement=STATEMENT)
        beating = asyncio.create_task(pulse.watch(pool))
        try:
            async with stopped.acquire() as conn:
                await conn.execute("BEGIN; SELECT FROM quotas FOR UPDATE")
                line.freeze(answers_only=True)
                preparing = asyncio.create_task(conn.fetchval("SELECT 'never prepared before'"))
                assert not (await accepted(Acceptor(pool), send(actor))).replayed
                line.thaw()
                with pytest.raises(
                    (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
                ) as said:
                    await preparing
            assert is_down(said.value)
            assert await idle.fetchval("SELECT pg_backend_pid()") == pid
        finally:
            beating.cancel()
            stopped.terminate()
            await asyncio.gather(beating, return_exceptions=True)


async def test_the_server_finds_out_that_this_end_is_gone(pool: Pool) -> None:
    rows = await pool.fetch(
        "SELECT name, current_setting(name) FROM unnest($1::text[]) AS name", list(DEAD_PEER_TIMEOUTS)
    )
    assert dict(rows) == DEAD_PEER_TIMEOUTS


async def test_a_pool_whose_connections_are_all_taken_is_waited_for_no_longer_than_its_patience(
    database_url: str,
) -> None:
    small = await open_pool(database_url, size=1, patience=0.1)
    try:
        async with small.acquire():
            with pytest.raises(TimeoutError) as refused:
                await small.fetchval("SELECT 1")
        assert is_down(refused.value)
        assert await small.fetchval("SELECT 1") == 1
    finally:
        small.terminate()


# -- several hosts -----------------------------------------------------------------------------------------------------


def several(url: str, *ports: int, query: str = "") -> str:
    """The database of `url`, at several ports of this machine."""
    parts = urllib.parse.urlsplit(url)
    credentials = parts.netloc.rpartition("@")[0]
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return parts._replace(netloc=f"{credentials}@{hosts}", query=query).geturl()


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, whoever is tried first has all the time: on a busy machine, a connection takes longer than the
    moment after which the next one is tried as well."""
    monkeypatch.setattr("heliograph.base.network.connecting.STAGGER", 10 * LONG)


async def test_a_first_host_that_hangs_costs_a_moment(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next host is tried in parallel, long before the first one's time is over."""
    async with wire(database_url) as (hung, _), wire(database_url) as (good, _):
        hung.freeze()
        connector = Connector(several(database_url, hung.port, good.port, query=HANGS))
        async with asyncio.timeout(LONG):
            first = await connector.connect()
            alone(monkeypatch)
            second = await connector.connect()
        assert await first.fetchval("SELECT 1") == 1
        # The host that answered last is tried first.
        assert (hung.made, good.made) == (1, 2)
        await first.close()
        await second.close()


async def test_a_host_that_hangs_delays_nobody_who_looks_for_its_successor(
    pool: Pool, database_url: str, as_owner: Callable[[str], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby is asked again and again until it is the primary, while the old one is silent."""
    name = await pool.fetchval("SELECT current_database()")
    async with wire(database_url) as (hung, _), wire(database_url) as (standby, _):
        hung.freeze()
        connector = Connector(several(database_url, hung.port, standby.port, query=HANGS))
        await as_owner(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        reached = asyncio.create_task(connector.reach(pause=0.05))
        await until(lambda: standby.made >= 3 or reached.done())
        assert not reached.done()
        await as_owner(f'BEGIN READ WRITE; ALTER DATABASE "{name}" RESET default_transaction_read_only; COMMIT')
        async with asyncio.timeout(LONG):
            found = await reached
        assert await found.fetchval("SELECT 1") == 1
        await found.close()
        assert hung.made == 1
        # From now on it is tried first.
        made = standby.made
        alone(monkeypatch)
        await (await connector.connect()).close()
        assert (hung.made, standby.made) == (1, made + 1)


async def test_a_search_for_a_primary_ends_and_leaves_nothing_behind(pool: Pool, database_url: str) -> None:
    read_only = "options=-c%20default_transaction_read_only%3Don&connect_timeout=1"
    async with wire(database_url) as (hung, _), wire(database_url) as (standby, _):
        hung.freeze()
        connector = Connector(several(database_url, hung.port, standby.port, query=read_only))
        with pytest.raises((TimeoutError, asyncpg.InternalClientError)) as refused:
            await connector.reach(pause=0.05)
        assert is_down(refused.value)
        # A connection that is given up rolls back.
        searching = asyncio.create_task(connector.reach(pause=0.05))
        made = standby.made
        await until(lambda: standby.made > made)
        searching.cancel()
        await asyncio.gather(searching, return_exceptions=True)
        assert [task for task in asyncio.all_tasks() if "again" in repr(task.get_coro())] == []


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_first_address_of_a_host_that_hangs_costs_a_moment(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    """Such as the address of a pod that is gone, or one on a network that drops IPv6. The host is still called by its
    name."""
    authority = Authority(tmp_path)
    context: ssl.SSLContext | None = None
    if encrypted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.issue("db.example"))

    async def addresses(host: Host) -> list[str]:
        assert host.name == "db.example"
        return ["127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr("heliograph.base.network.connecting._addresses", addresses)
    heard: list[asyncio.StreamWriter] = []
    async with wire(database_url, tls=context) as (good, url):
        silent = await asyncio.start_server(lambda _, writer: heard.append(writer), "127.0.0.2", good.port)
        query = f"{HANGS}&sslmode=verify-full&sslrootcert={authority.file}" if encrypted else HANGS
        connector = Connector(f"{url.replace('@127.0.0.1:', '@db.example:')}?{query}")
        async with asyncio.timeout(LONG):
            first = await connector.connect()
            alone(monkeypatch)
            second = await connector.connect()
        assert await first.fetchval("SELECT 1", timeout=LONG) == 1
        assert (good.encrypted > 0) is encrypted
        # The address that answered last is tried first.
        assert (len(heard), good.made) == (1, 2)
        await first.close()
        await second.close()
        silent.close()
        for writer in heard:
            writer.close()


async def test_a_look_up_that_takes_longer_than_an_attempt_serves_the_next(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first of two name servers was down, no look-up ended within the time of an attempt, and each attempt
    began a new one: no connection was made until that name server was back."""
    begun, answers = 0, asyncio.Event()

    async def addresses(host: Host) -> list[str]:
        nonlocal begun
        begun += 1
        await answers.wait()
        return ["127.0.0.1"]

    monkeypatch.setattr("heliograph.base.network.connecting._addresses", addresses)
    connector = Connector(f"{database_url.replace('@127.0.0.1:', '@db.example:')}?connect_timeout=1")
    for _ in range(2):
        with pytest.raises(TimeoutError, match="its name is not resolved in time") as refused:
            await connector.connect()
        assert is_down(refused.value)
    answers.set()
    await (await connector.connect()).close()
    assert begun == 1
    await (await connector.connect()).close()
    assert begun == 2, "a result is used once"
    # From now on, name servers are not waited for.
    answers.clear()
    for _ in range(2):
        await (await connector.connect()).close()
    assert begun == 3


async def test_name_servers_that_are_down_do_not_keep_from_a_database_that_was_found_before(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[int] = []

    async def addresses(host: Host) -> list[str]:
        if errors:
            raise socket.gaierror(errors[0], "no answer")
        return ["127.0.0.1"]

    monkeypatch.setattr("heliograph.base.network.connecting._addresses", addresses)
    connector = Connector(database_url.replace("@127.0.0.1:", "@db.example:"))
    await (await connector.connect()).close()
    errors.append(socket.EAI_AGAIN)
    await (await connector.connect()).close()
    errors[0] = socket.EAI_NONAME  # a name server says that there is no such host
    with pytest.raises(socket.gaierror):
        await connector.connect()


async def test_what_an_address_says_counts_more_than_that_nobody_is_at_another(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("another.example"))

    async def addresses(host: Host) -> list[str]:
        return ["127.0.0.1", "127.0.0.2"]

    monkeypatch.setattr("heliograph.base.network.connecting._addresses", addresses)
    async with wire(database_url, tls=context) as (_, url):
        named = url.replace("@127.0.0.1:", "@db.example:")
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await connect(f"{named}?sslmode=verify-full&sslrootcert={authority.file}")


async def test_a_pool_moves_to_the_host_that_answers(pool: Pool, database_url: str) -> None:
    actor = await organization(pool)
    async with (
        wire(database_url) as (first, _),
        wire(database_url) as (second, _),
        watched(several(database_url, first.port, second.port, query=HANGS)) as moved,
    ):
        acceptor = Acceptor(moved)
        await acceptor.accept(send(actor, key_name="before"))
        assert second.made == 0
        first.freeze()
        assert not (await accepted(acceptor, send(actor, key_name="after"))).replayed
        assert second.made > 0


async def test_a_listener_whose_database_hangs_listens_to_the_next_host(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.queue.runner.LISTENS", 0.5)
    heard: list[int] = []
    async with wire(database_url) as (first, _), wire(database_url) as (second, _):
        url = several(database_url, first.port, second.port, query="connect_timeout=1")
        task = asyncio.create_task(listen(Connector(url), lambda: heard.append(1)))
        try:
            await until(lambda: heard)
            first.freeze()
            await until(lambda: second.made)
            await until(lambda: len(heard) >= 2)
            await pool.execute("SELECT pg_notify($1, '')", CHANNEL)
            await until(lambda: len(heard) >= 3)
        finally:
            task.cancel()


async def test_of_several_hosts_one_that_takes_writes_is_wanted(pool: Pool, database_url: str) -> None:
    port = urllib.parse.urlsplit(database_url).port
    assert port is not None
    read_only = "options=-c%20default_transaction_read_only%3Don"
    with pytest.raises(asyncpg.InternalClientError) as refused:
        await connect(several(database_url, port, port, query=read_only))
    assert is_down(refused.value)
    for wanted in ("any", "read-only", "prefer-standby", "primary"):
        found = await connect(several(database_url, port, port, query=f"{read_only}&target_session_attrs={wanted}"))
        await found.close()
    # A URL with one host means that host.
    found = await connect(several(database_url, port, query=read_only))
    await found.close()


async def test_every_connection_finds_out_that_its_other_end_is_gone(database_url: str) -> None:
    query = "keepalives_idle=7&keepalives_interval=2&keepalives_count=4&tcp_user_timeout=9000"
    port = urllib.parse.urlsplit(database_url).port
    assert port is not None
    for asked, expected in (("", (1, 10, 3, 3, 10_000)), (query, (1, 7, 2, 4, 9000)), ("keepalives=0", (0,))):
        found: Any = await connect(several(database_url, port, query=asked))
        sock = found._transport.get_extra_info("socket")
        options = (
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            *(
                sock.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            ),
        )
        assert options[: len(expected)] == expected
        await found.close()


async def test_a_database_that_takes_no_writes_is_away(database_url: str) -> None:
    """A standby behind a name or a load balancer: none of its connections is kept."""
    url = f"{database_url}?options=-c%20default_transaction_read_only%3Don"
    async with watched(url) as standby:
        await until(lambda: standby.get_size() == 0)
        with pytest.raises(ConnectionError):
            await standby.fetchval("SELECT 1")


@pytest.mark.parametrize("word", ["clock_timestamp", "schema_migrations", "organizations"])
async def test_a_database_that_goes_away_again_while_a_process_starts_is_waited_for(
    database_url: str, word: str
) -> None:
    """Like a server that is killed: it responded to the first query, and does not to a later one."""
    async with wire(database_url) as (line, url):
        line.end_at(word.encode())
        async with asyncio.timeout(LONG):
            await prepared(Settings(secret_key="a secret key for tests, long enough", database_url=url))
        assert line.made > 1


async def test_a_process_that_waits_for_its_database_says_so(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "QUIET", 0.0)
    said: list[tuple[str, str, str]] = []
    monkeypatch.setattr(process.log, "warning", lambda event, *, at, reason: said.append((event, at, reason)))
    async with wire(database_url) as (line, url):
        line.freeze()
        waiting = asyncio.create_task(prepared(Settings(secret_key="k" * 40, database_url=url)))
        await until(lambda: bool(said))
        line.thaw()
        async with asyncio.timeout(LONG):
            await waiting
    assert said == [("waiting for the database", shown(url), "it does not answer")]


async def test_a_process_that_waits_for_its_database_says_why(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    async def refused(url: str, *, failed: Callable[[Exception], object], **options: Any) -> Pool:
        failed(asyncpg.TooManyConnectionsError("sorry, too many clients already"))
        await asyncio.sleep(LONG)
        raise AssertionError("it was waited for in vain")

    monkeypatch.setattr(process, "QUIET", 0.0)
    monkeypatch.setattr(process, "open_pool", refused)
    monkeypatch.setattr(process.log, "warning", lambda event, *, at, reason: said.append(reason))
    waiting = asyncio.create_task(prepared(Settings(secret_key="k" * 40, database_url=database_url)))
    await until(lambda: bool(said))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert said == ["sorry, too many clients already"]


async def test_each_try_to_reach_the_database_is_told(database_url: str) -> None:
    told: asyncio.Queue[Exception] = asyncio.Queue()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql://u:p@127.0.0.1:{nobody.getsockname()[1]}/heliograph"
        opening = asyncio.create_task(open_pool(url, size=1, wait=LONG, failed=told.put_nowait))
        async with asyncio.timeout(LONG):
            assert isinstance(await told.get(), ConnectionRefusedError)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)


async def test_a_database_that_does_not_answer_is_said_not_to(database_url: str) -> None:
    async with wire(database_url) as (line, url):
        line.freeze()
        with pytest.raises(TimeoutError, match=r"^it does not answer$"):
            await connect(f"{url}{'&' if '?' in url else '?'}connect_timeout=2")
