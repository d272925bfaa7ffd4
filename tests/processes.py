"""Heliograph as separate processes, to be killed, and their environment: a database with an organization, a simulated
supplier and a webhook receiver. The latter two run in the test's own process, where they can be inspected.

`tests/load.py` sends messages, `tests/judge.py` says whether all promises were kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
import psutil

from heliograph.accounts import organizations, quota
from heliograph.accounts.api_keys import lifecycle
from heliograph.base.actor import Actor
from heliograph.base.embedded.server import Embedded
from heliograph.base.network.connecting import connect
from heliograph.base.process.settings import Settings, from_environment
from heliograph.serve import serve
from heliograph.simulators.aggregators.simulator import Aggregator
from heliograph.simulators.receiver import Options, Receiver
from heliograph.simulators.smsc.simulator import Smsc, SmscOptions
from heliograph.sms.accepting import sender_ids
from heliograph.sms.dispatch import suppliers
from heliograph.webhooks import endpoints
from heliograph.worker import work
from tests import forks
from tests.fork_server import end_with_parent
from tests.forks import Forked
from tests.ports import held_port

#: Whether the long form of fault tests is wanted.
LONG = os.environ.get("HELIOGRAPH_FAULTS") == "long"
GRANT = 1_000_000
SECRET_KEY = "a secret key for fault tests only, long enough"
SYSTEM_ID, PASSWORD = "acme", "geheim"
#: Submits that may be unanswered when a worker is killed, per session.
WINDOW = 10
#: What takes a minute or more in production takes seconds here, in the same proportions.
FAST_SETTINGS = {
    "HELIOGRAPH_SECRET_KEY": SECRET_KEY,
    "HELIOGRAPH_PAGE_PATIENCE_SECONDS": "60",
    "HELIOGRAPH_LOG_LEVEL": "warning",
    "HELIOGRAPH_LOG_FORMAT": "text",
    "HELIOGRAPH_RATE_SMS_SEND": "1000000",
    "HELIOGRAPH_LEASE_SECONDS": "3",
    "HELIOGRAPH_UNCERTAIN_GRACE_SECONDS": "4",
    "HELIOGRAPH_DRAIN_SECONDS": "5",
    "HELIOGRAPH_NOT_READY_SECONDS": "0",
    "HELIOGRAPH_WEBHOOK_ALLOW_HTTP": "true",
    "HELIOGRAPH_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8",
    "HELIOGRAPH_WEBHOOK_SCHEDULE": "0,1,1,2,2,5,5,10,10,10,10",
}
#: Production's leases, for tests in which no process is killed: a process that stalls on a busy machine keeps them.
PRODUCTION_LEASES = {"HELIOGRAPH_LEASE_SECONDS": "30", "HELIOGRAPH_DRAIN_SECONDS": "20"}
#: The beginning of a line that starts a log entry.
_ENTRY = re.compile(r"\d{4}-\d\d-\d\dT|--- ")
_COMPLAINT = re.compile(r"(loop|timer|announce) failed|never retrieved|broke off|not recorded|internal_error")


def environment(**changed: str) -> dict[str, str]:
    """This process's environment, with only these `HELIOGRAPH_` settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HELIOGRAPH_")} | changed


class Program:
    """A running `heliograph` command, whose output goes to two files."""

    def __init__(self, process: asyncio.subprocess.Process | Forked, out: Path, err: Path) -> None:
        self._process = process
        self._out, self._err = out, err

    @classmethod
    async def start(
        cls,
        *arguments: str,
        log: Path,
        environment: Mapping[str, str],
        through: Sequence[str] = (),
        forked: bool = False,
    ) -> Program:
        """Run `heliograph` with these arguments; `log`: the path of its log files, without the extension. It ends with
        this process.

        `forked`: from a process that has imported it already, which takes a tenth of the time. `through`: a command
        that executes its arguments, for example as another user."""
        out, err = log.with_suffix(".out"), log.with_suffix(".err")
        with out.open("ab") as out_file, err.open("ab") as err_file:
            if forked:
                return cls(
                    await forks.start(*arguments, environment=environment, stdout=out_file, stderr=err_file), out, err
                )
            process = await asyncio.create_subprocess_exec(
                *(*through, sys.executable, "-m", "heliograph", *arguments),
                env=dict(environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        return cls(process, out, err)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """As in subprocess; None while it runs."""
        return self._process.returncode

    @property
    def out(self) -> str:
        """Its output on stdout so far."""
        return self._out.read_text()

    @property
    def err(self) -> str:
        """Its output on stderr so far."""
        return self._err.read_text()

    async def ready(self) -> None:
        """Wait until it has printed something on stdout, which commands do when they are ready."""
        await until(lambda: self.out or self.status is not None, within=120)
        assert self.status is None, self.err

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    async def ended(self, *, within: float = 120.0) -> int:
        """Wait until it has ended by itself; returns its exit status."""
        return await asyncio.wait_for(self._process.wait(), within)

    async def kill(self) -> None:
        """kill -9, unless it has ended already."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop gracefully; returns its exit status."""
        self.send(number)
        return await self.ended()


class Installation:
    """A database and everything around it. Made by `installation`."""

    def __init__(
        self, url: str, place: Path, *, port: int, smsc: Smsc, receiver: Receiver, settings: Mapping[str, str]
    ) -> None:
        self.url = url
        self.place = place
        self.smsc = smsc
        #: All suppliers that messages may have been sent to.
        self.smscs = [smsc]
        self.aggregators: list[Aggregator] = []
        self.receiver = receiver
        self.environment = environment(**(FAST_SETTINGS | dict(settings) | {"HELIOGRAPH_DATABASE_URL": url}))
        #: For code that runs in this process.
        self.settings = from_environment(self.environment)
        #: Reserved, so that a process finds it free again after a kill.
        self.port = port
        self.actor: Actor
        self.key = ""
        self.key_id: UUID
        self._programs: list[Program] = []

    @property
    def base_url(self) -> str:
        """The URL of the web process, or processes, that `api` started."""
        return f"http://127.0.0.1:{self.port}"

    async def api(self, *, port: int | None = None, tree: Path | None = None, **settings: str) -> Program:
        """Start a web process, on the installation's port unless another is given; `tree`: run the version in this
        directory. Does not wait until it is ready."""
        return await self.start("api", "api", "--port", str(port or self.port), tree=tree, **settings)

    async def worker(self, *, tree: Path | None = None, **settings: str) -> Program:
        """Start a worker process. Does not wait until it is ready, which `ready` does."""
        return await self.start("worker", "worker", "--json", tree=tree, **settings)

    async def kill_all(self) -> None:
        """Kill all processes that are still running."""
        for program in self._programs:
            await program.kill()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Do a web process's work in this process."""
        stop, ready = asyncio.Event(), asyncio.Event()
        with _listening(self.port) as sock:
            task = asyncio.create_task(
                serve(self.settings, sockets=[sock], on_ready=lambda _: ready.set(), stop=stop, own_process=False)
            )
            async with _running(task, ready, stop):
                yield

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Do a worker's work in this process; stops gracefully."""
        stop, ready = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(work(self.settings, stop=stop, on_ready=ready.set, own_process=False))
        async with _running(task, ready, stop):
            yield

    async def start(self, name: str, *arguments: str, tree: Path | None = None, **settings: str) -> Program:
        """Start `heliograph` with these arguments; `name` is used for its logs. Does not wait until it is ready."""
        log, there = self.place / f"{name}-{len(self._programs)}", self.environment | settings
        through = () if tree is None else ("env", "-C", str(tree), f"PYTHONPATH={tree}")
        program = await Program.start(*arguments, log=log, environment=there, through=through, forked=not through)
        self._programs.append(program)
        return program

    @property
    def complaints(self) -> list[str]:
        """Logged failures, except those caused by a missing database, each with its traceback."""
        found: list[str] = []
        traced = False
        for line in self.stderr.splitlines():
            if _COMPLAINT.search(line):
                found.append(line)
                traced = True
            elif _ENTRY.match(line):
                traced = False
            elif traced:
                found[-1] += f"\n{line}"
        return found

    @property
    def stderr(self) -> str:
        """The stderr of all its processes."""
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.place.glob("*.err")))


@contextlib.asynccontextmanager
async def installation(
    url: str,
    place: Path,
    *,
    sessions: int = 1,
    smsc: Mapping[str, Any] = MappingProxyType({}),
    smpp: Mapping[str, Any] = MappingProxyType({}),
    **settings: str,
) -> AsyncIterator[Installation]:
    """An organization with a quota of GRANT, a default sender, a key, a supplier and a webhook for message events, on
    the migrated database `url`.

    `smsc`: options of the simulated supplier; `smpp`: settings of our account there; `settings`: `HELIOGRAPH_…`
    variables of the processes."""
    async with contextlib.AsyncExitStack() as stack:
        port, smsc_port = (stack.enter_context(held_port()) for _ in range(2))
        simulator = Smsc(SmscOptions(**SMSC | {"port": smsc_port} | dict(smsc)))
        receiver = Receiver(Options(keep=1_000_000))
        made = Installation(url, place, port=port, smsc=simulator, receiver=receiver, settings=settings)
        await simulator.start()
        stack.push_async_callback(simulator.stop)
        await receiver.start()
        stack.push_async_callback(receiver.stop)
        stack.push_async_callback(made.kill_all)
        conn = await connect(url)
        try:
            organization = await organizations.create(conn, name="Acme", state="active")
            made.actor = Actor(organization.id, None, "live", frozenset(), organization.state)
            await quota.grant(conn, organization.id, amount=GRANT, reason="test")
            sender = await sender_ids.request(conn, made.actor, value="HELIOGRAPH")
            await sender_ids.review(conn, made.actor, id=sender.id, status="approved")
            key, made.key = await lifecycle.issue(conn, made.actor, name="test", profile="full_access", mode="live")
            made.key_id = key.id
            await add_supplier(conn, made.settings, "main", simulator, sessions=sessions, **smpp)
            await endpoints.create(
                conn,
                made.actor,
                url=receiver.url,
                subscribed_events=["message.delivered", "message.failed"],
                rules=endpoints.rules(made.settings),
            )
        finally:
            await conn.close()
        yield made


#: Numbers have no magic endings, and a submit takes a moment, so that a kill finds some in flight. What shares of
#: faults choose is the same in each run, except in the long form.
SMSC: dict[str, Any] = {
    "port": 0,
    "seed": None if LONG else 1,
    "systems": {SYSTEM_ID: PASSWORD},
    "magic": "",
    "latency": 0.02,
    "receipt_delay": 0.05,
    "redeliver_after": 1.0,
    "keep": 1_000_000,
}


async def add_supplier(
    conn: asyncpg.Connection[Any],
    settings: Settings,
    name: str,
    smsc: Smsc,
    *,
    sessions: int = 1,
    priority: int = 10,
    **changed: Any,
) -> UUID:
    """Add a simulated supplier; `changed`: SMPP settings. Returns its id."""
    values = {
        "host": "127.0.0.1",
        "port": smsc.port,
        "system_id": SYSTEM_ID,
        "tls": False,
        "window": WINDOW,
        "reconnect_seconds": 0.1,
        "reconnect_max_seconds": 0.5,
    }
    return await suppliers.add(
        conn,
        suppliers.seal_key(settings),
        name=name,
        kind="smpp",
        settings=values | changed,
        secret=PASSWORD,
        sessions=sessions,
        priority=priority,
    )


async def kill(server: Embedded) -> None:
    """kill -9 PostgreSQL and start it again; returns once it accepts connections."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await server.wait()
    await server.start()


async def until(condition: Callable[[], object], *, within: float = 120.0) -> None:
    """Wait until the condition holds. TimeoutError after `within` seconds."""
    async with asyncio.timeout(within):
        while True:
            if condition():
                return
            await asyncio.sleep(0.02)


async def until_true(condition: Callable[[], Awaitable[object]], *, within: float = 120.0) -> None:
    """The same for an asynchronous condition, which may raise while the database or a server is down."""
    async with asyncio.timeout(within):
        while True:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, aiohttp.ClientError):
                if await condition():
                    return
            await asyncio.sleep(0.1)


def descendants(pid: int) -> list[psutil.Process]:
    """All live descendants of this process."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def alive(process: psutil.Process) -> bool:
    """Whether it is still running. A zombie, which has ended and waits for its parent, is not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def _listening(port: int) -> Any:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(512)
        sock.setblocking(False)
        yield sock


@contextlib.asynccontextmanager
async def _running(task: asyncio.Task[None], ready: asyncio.Event, stop: asyncio.Event) -> AsyncIterator[None]:
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
    waiting.cancel()
    try:
        assert ready.is_set(), "it did not start"
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 120)
