"""One machine, one command: PostgreSQL, migrations, web processes, worker, simulated suppliers, a demo organization.

The parts are separate processes, the same as in production. This one only supervises: what ends is restarted, after a
pause that grows while it keeps ending. The parts end with this process (Linux: PDEATHSIG), so that `kill -9` leaves
nothing behind but PostgreSQL, which the next start adopts.

The rule nobody may break: parts stop in the order in which work flows (web, worker, simulators, PostgreSQL), so that
nothing is accepted that cannot be stored.

It has over 400 lines because starting and stopping are one sequence.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import random
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID

import asyncpg
import msgspec

from heliograph import demo
from heliograph.base.crypto import Unsealable
from heliograph.base.database import url as database_url
from heliograph.base.database.migrate import migrate
from heliograph.base.database.pool import open_pool
from heliograph.base.database.roles import RoleMissing
from heliograph.base.embedded.files import Layout, has_cluster
from heliograph.base.embedded.install import PostgresError
from heliograph.base.embedded.server import Embedded, default_data_dir
from heliograph.base.network.connecting import connect
from heliograph.base.process import private_files
from heliograph.base.process.settings import Settings, SettingsError, demand_secret_key, from_environment, unknown_names
from heliograph.base.process.signals import KINDS, end_with_parent
from heliograph.demo import Credentials, Smsc
from heliograph.people import links

#: Pause before a part that ended is started again, seconds: first, and at most.
PAUSE, LONGEST_PAUSE = 0.1, 5.0
#: A part that ran this long is considered healthy: its next pause is the first one again.
WELL = 10.0
#: How long to wait for a part that another one needs, seconds.
SOON = 5.0
#: How long a part may take to end after SIGTERM; the worker drains for `drain_seconds` in it.
PATIENCE = 30.0
#: For migrations, which no part runs.
OWNER_URL = "HELIOGRAPH_OWNER_DATABASE_URL"


class UpOptions(msgspec.Struct, frozen=True):
    """The command line of `heliograph up`."""

    host: str = "127.0.0.1"
    #: 0: any free port.
    port: int = 8080
    data_dir: Path | None = None
    api_processes: int = 1
    #: Where the credentials go as JSON; None: `credentials.json` in the data directory.
    credentials_file: Path | None = None


class UpError(Exception):
    """`up` cannot start; the message says what to do."""


class Part:
    """One supervised process."""

    def __init__(
        self, name: str, arguments: list[str], environment: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._name = name
        self._arguments = arguments
        self._environment = environment
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        """Run it, and run it again whenever it ends."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL after a while."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), PATIENCE)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause = PAUSE
        while not self._stopping:
            began = loop.time()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "heliograph",
                *self._arguments,
                env=dict(self._environment),
                stdin=asyncio.subprocess.DEVNULL,
                # A session of its own keeps the terminal's Ctrl-C from reaching it: the order of stopping is ours.
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
            status = await self._process.wait()
            if self._stopping:
                return
            self._say(f"{self._name} ended ({status}); restarting it.")
            pause = PAUSE if loop.time() - began > WELL else min(pause * 2, LONGEST_PAUSE)
            await asyncio.sleep(pause)


class Welcome(msgspec.Struct, frozen=True):
    """What a start found or created, to be shown."""

    credentials: Credentials
    #: The file that holds them.
    path: Path
    #: Whether this start created a key: only then is it shown on the terminal, where logs may keep it.
    keys_are_new: bool
    #: The URL of the dashboard; with a link that signs its owner in once, as long as they have no password.
    dashboard: str = ""
    #: The URL of the console; with a link to its setup, as long as no operator has finished theirs.
    console: str = ""


def welcome(ready: Welcome) -> None:
    """Print what a person needs to begin."""
    print(_welcome(ready), flush=True)


async def up(
    options: UpOptions,
    *,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
    on_ready: Callable[[Welcome], None] = welcome,
) -> int:
    """Run everything until SIGINT, SIGTERM or SIGHUP; returns the exit status.

    `say` gets lines for people; `on_ready` the credentials, once the API answers. Raises UpError, PostgresError and
    SettingsError when it cannot start.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in KINDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop.set)
    # Before anything is made that a start which is refused would leave behind.
    port = options.port or _free_port(options.host)
    _check_free(options.host, port)
    data_dir = (options.data_dir or default_data_dir()).absolute()
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UpError(f"cannot use the data directory {data_dir}: {error}; choose another with --data-dir") from None
    settings = from_environment()
    if not settings.secret_key:
        kept, other = await _secret_key(data_dir, settings), _kept_key(data_dir / "other_secret_key")
        settings = msgspec.structs.replace(
            settings, secret_key=kept, other_secret_key=settings.other_secret_key or other
        )
    demand_secret_key(settings)
    _demand_outside(settings, data_dir)
    database: Embedded | None = None
    if not settings.database_url:
        archive = Path(settings.wal_archive).absolute() if settings.wal_archive else None
        database = Embedded(data_dir / "postgres", on_progress=say, archive=archive)
        await database.start()
        settings = msgspec.structs.replace(settings, database_url=database.url, owner_database_url=database.owner_url)
    parts: list[Part] = []
    watcher: asyncio.Task[None] | None = None
    try:
        await _migrate(settings)
        credentials, app, are_new, dashboard, console = await _prepare(
            settings, data_dir, f"http://{_shown(options.host)}:{port}", is_local=_is_loopback(options.host)
        )
        environment = part_environment(settings, host=options.host)
        outside = _outside()
        serve = ["api", "--host", options.host, "--port", str(port)]
        parts = [
            Part("simulated SMSC", _smsc(credentials.smsc, data_dir / "smsc.json"), outside, say),
            Part("simulated Cloud API", _graph(credentials, app, data_dir / "graph.json"), outside, say),
            Part("worker", ["worker"], environment, say),
            *(Part("api", serve, environment, say) for _ in range(options.api_processes)),
        ]
        for part in (*parts[:2], *parts[3:]):
            part.start()
        # The worker asks the simulated Cloud API for its numbers as soon as it runs; if that were not there yet, it
        # would retry only seconds later.
        await _listens(credentials.whatsapp.host, credentials.whatsapp.port)
        parts[2].start()
        if database is not None:
            watcher = asyncio.create_task(_keep_database(database, say))
        # In this order: the API's health status is up to two seconds old, and without a worker it is degraded.
        credentials.whatsapp.phone_number_id = await _number(settings.database_url, credentials, stop)
        await _answers(options.host, port, stop)
        path = options.credentials_file or data_dir / "credentials.json"
        demo.write_credentials(data_dir / "credentials.json", credentials)
        demo.write_credentials(path, credentials)
        if not stop.is_set():
            on_ready(Welcome(credentials, path, are_new, dashboard, console))
        await stop.wait()
        say("Stopping.")
        return 0
    finally:
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        apis, others = parts[3:], parts[2::-1]
        await asyncio.gather(*(part.stop() for part in apis))
        for part in others:
            await part.stop()
        if database is not None:
            await database.stop()


async def _keep_database(database: Embedded, say: Callable[[str], None]) -> None:
    pause = PAUSE
    while True:
        status = await database.wait()
        say(f"PostgreSQL ended ({status}); restarting it.")
        while True:
            try:
                await database.start()
                pause = PAUSE
                break
            except PostgresError as error:
                say(f"PostgreSQL cannot be started: {error}")
                pause = min(pause * 2, LONGEST_PAUSE)
                await asyncio.sleep(pause)


async def _migrate(settings: Settings) -> None:
    """Raises UpError and MigrationError."""
    try:
        await migrate(settings.owner_database_url or settings.database_url, application=settings.database_url)
    except RoleMissing as error:
        raise UpError(str(error)) from None
    except (OSError, asyncpg.PostgresError) as error:
        raise UpError(f"the database cannot be used: {error}") from error


async def _prepare(
    settings: Settings, data_dir: Path, base_url: str, *, is_local: bool
) -> tuple[Credentials, UUID, bool, str, str]:
    """Credentials, the id of the simulated app, whether a key is new, and the URLs of the dashboard and the console."""
    kept = data_dir / "credentials.json"
    known = demo.read_credentials(kept)
    smsc = known.smsc if known else Smsc("127.0.0.1", 0, "heliograph", secrets.token_urlsafe(6))
    graph = known.whatsapp if known else demo.new_graph()
    # The simulators keep their ports if they are free, so that a worker that still runs finds them again.
    for simulator in (smsc, graph):
        if simulator.port == 0 or not _is_free(simulator.host, simulator.port):
            simulator.port = _free_port(simulator.host)
    pool = await open_pool(settings.database_url, size=1, wait=10.0)
    try:
        async with pool.acquire() as conn:
            organization_id, live, test = await demo.ensure(conn, settings, smsc=smsc, known=known)
            app = await demo.ensure_whatsapp(conn, settings, organization_id, graph)
            token = await demo.owners_link(conn, organization_id)
            setup = await demo.operators_link(conn)
    except Unsealable:
        raise UpError(
            "the secret key does not open what is encrypted in the database: put back the file"
            f" {data_dir / 'secret_key'} that was there before, or set HELIOGRAPH_SECRET_KEY to the key used before"
        ) from None
    finally:
        await pool.close()
    credentials = Credentials(base_url, str(organization_id), live, test, settings.database_url, smsc, graph, is_local)
    demo.write_credentials(kept, credentials)
    demo.write_simulators(data_dir / "smsc.json", data_dir / "graph.json", credentials)
    are_new = known is None or (known.live_key, known.test_key) != (live, test)
    dashboard = settings.public_url or base_url
    enter = links.address(dashboard, token) if token else f"{dashboard.rstrip('/')}/"
    console = settings.console_url or (f"http://{settings.console_listen}" if settings.console_listen else dashboard)
    run = links.address(console, setup, realm="console") if setup else f"{console.rstrip('/')}/console"
    return credentials, app, are_new, enter, run


def _smsc(smsc: Smsc, config: Path) -> list[str]:
    return [
        *("simulate", "smsc", "--host", smsc.host, "--port", str(smsc.port), "--quiet"),
        *("--config", str(config)),
    ]


def _graph(credentials: Credentials, app: UUID, config: Path) -> list[str]:
    graph = credentials.whatsapp
    return [
        *("simulate", "graph", "--host", graph.host, "--port", str(graph.port), "--quiet"),
        *("--config", str(config), "--webhook-url", f"{credentials.base_url}/in/whatsapp/{app}"),
    ]


async def _number(url: str, credentials: Credentials, stop: asyncio.Event) -> str:
    """Return the id of the simulated WhatsApp number, once the worker has fetched it and its templates."""
    conn = await connect(url)
    try:
        while not stop.is_set():
            id = await demo.mirrored(conn, UUID(credentials.organization_id))
            if id is not None:
                return id
            await asyncio.sleep(0.05)
    finally:
        await conn.close()
    return ""


def part_environment(settings: Settings, *, host: str) -> dict[str, str]:
    """The environment of the API and the worker: what this start determined, and ours, which overrides defaults.

    Webhooks may go to loopback only while the API listens there: then whoever can register one is on this machine
    already. Listening elsewhere, it would lend others a way to what listens on loopback.
    """
    usual = {
        "HELIOGRAPH_LOG_LEVEL": "warning",
        "HELIOGRAPH_LOG_FORMAT": "text",
        "HELIOGRAPH_NOT_READY_SECONDS": "0",  # no load balancer in front of it has to be informed
    }
    if _is_loopback(host):
        usual |= {"HELIOGRAPH_WEBHOOK_ALLOW_HTTP": "true", "HELIOGRAPH_WEBHOOK_ALLOW_NETWORKS": demo.LOOPBACK}
    found = {"HELIOGRAPH_DATABASE_URL": settings.database_url, "HELIOGRAPH_SECRET_KEY": settings.secret_key}
    if settings.other_secret_key:
        found["HELIOGRAPH_OTHER_SECRET_KEY"] = settings.other_secret_key
    # This process has already reported misspelt ones.
    unknown = unknown_names()
    given = {name: value for name, value in os.environ.items() if name not in unknown and name != OWNER_URL}
    return usual | given | found


def _outside() -> dict[str, str]:
    """The environment of the simulators: they represent the outside world, so they learn nothing about this one."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("HELIOGRAPH_", "PG"))}


def _is_loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


# Whoever migrated before the first start has nothing yet that a key sealed; organizations come with keys.
IS_USED = "SELECT EXISTS (SELECT FROM organizations)"


async def _secret_key(data_dir: Path, settings: Settings) -> str:
    """The installation's secret key, created with its database, readable only by the owner. Raises UpError where there
    is a database already: no new key opens what is sealed in it."""
    path = data_dir / "secret_key"
    if kept := _kept_key(path):
        return kept
    if settings.database_url:
        where = database_url.shown(settings.database_url)
        # The application's own role may be yet to be made, by the first migration.
        exists = await _is_used(settings.owner_database_url or settings.database_url)
    else:
        layout = Layout(data_dir / "postgres")
        where, exists = str(layout.home), has_cluster(layout)
    if exists:
        raise UpError(
            f"{path} is missing or empty, and the database in {where} is encrypted under the key that was there: put"
            " the file back, or set HELIOGRAPH_SECRET_KEY to that key"
        )
    private_files.write(path, secrets.token_urlsafe(48).encode() + b"\n")
    return _kept_key(path)


async def _is_used(url: str) -> bool:
    """Whether a database is an installation's already. Raises UpError if it cannot be reached."""
    try:
        conn = await connect(url)
        try:
            return bool(await conn.fetchval(IS_USED))
        finally:
            await conn.close()
    except asyncpg.UndefinedTableError:
        return False
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise UpError(f"the database cannot be used: {error}") from error


def _kept_key(path: Path) -> str:
    """A key in a file of the data directory; "": there is none. Raises UpError."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UpError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UpError(f"{path} is damaged, it is not text: put back the file that was there before") from None


def _demand_outside(settings: Settings, data_dir: Path) -> None:
    """Raises SettingsError if WAL would be archived beside the data that it is to bring back."""
    if settings.wal_archive and Path(settings.wal_archive).resolve().is_relative_to(data_dir.resolve()):
        raise SettingsError(
            f"HELIOGRAPH_WAL_ARCHIVE is {settings.wal_archive}, in the data directory {data_dir}: choose a directory"
            " outside of it, better on another disk"
        )


async def _listens(host: str, port: int) -> None:
    """Return once somebody listens there, or when waiting longer would help nobody."""
    deadline = asyncio.get_running_loop().time() + SOON
    while asyncio.get_running_loop().time() < deadline:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return


async def _answers(host: str, port: int, stop: asyncio.Event) -> None:
    """Return once the API reports that it is healthy, including a worker, or when it is time to stop."""
    request = b"GET /v1/health HTTP/1.1\r\nhost: heliograph\r\nconnection: close\r\n\r\n"
    while not stop.is_set():
        try:
            reader, writer = await asyncio.open_connection(_shown(host).strip("[]"), port)
            writer.write(request)
            answer = await asyncio.wait_for(reader.read(), 5.0)
            writer.close()
            if b" 200 " in answer[:20] and b'"status":"ok"' in answer:
                return
        except (OSError, TimeoutError):
            await asyncio.sleep(0.05)
            continue
        await asyncio.sleep(0.05)


def _welcome(ready: Welcome) -> str:
    credentials, file = ready.credentials, shlex.quote(str(ready.path))
    body = '{"to":"+258841234567","message":"Hello from Heliograph"}'
    template = '{"name":"appointment_reminder","language":"en","category":"utility","parameters":["Ana","Thursday"]}'
    graph = credentials.whatsapp
    if ready.keys_are_new:
        keys = f"\n  Live key      {credentials.live_key}\n  Test key      {credentials.test_key}"
        bearer = f"'authorization: Bearer {credentials.live_key}'"
    else:
        # Shown once; from then on the lines below read the key where it is kept.
        keys = "\n  Keys          in the credentials file"
        bearer = f'"authorization: Bearer $(sed -n \'s/.*"live_key": "\\(.*\\)".*/\\1/p\' {file})"'
    return f"""
Heliograph is ready.

  Dashboard     {ready.dashboard}
  Console       {ready.console}
  API           {credentials.base_url}/v1
  Docs          {credentials.base_url}/docs, guide at {credentials.base_url}/guide{keys}
  Organization  {credentials.organization_id}
  SMSC          {credentials.smsc.host}:{credentials.smsc.port} (simulated, SMPP 3.4)
  Cloud API     http://{graph.host}:{graph.port} (simulated, WhatsApp)
  Credentials   {ready.path}

Send a first message:

  curl -sS {credentials.base_url}/v1/sms/send -H {bearer} \\
    -H "idempotency-key: $(cat /proc/sys/kernel/random/uuid)" -H 'content-type: application/json' \\
    -d '{body}'

And a WhatsApp template, which its simulated user reads within a second or two:

  curl -sS {credentials.base_url}/v1/whatsapp/messages -H {bearer} \\
    -H 'content-type: application/json' -d '{{"type":"template","to":"+258841234567",
    "phoneNumberId":"{graph.phone_number_id}","template":{template}}}'

Ctrl-C stops everything; the data stays."""


def _shown(host: str) -> str:
    """The address to connect to for a listening address."""
    if host in ("0.0.0.0", ""):
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def _check_free(host: str, port: int) -> None:
    if not _is_free(host, port):
        raise UpError(f"port {port} on {host} is in use; choose another with --port, or stop the process that uses it")


def _is_free(host: str, port: int) -> bool:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise UpError(f"{host} is not an address of this machine: {error}") from None
    except OSError:
        return False
    return True


def _free_port(host: str) -> int:
    # Below the range of outgoing connections, as PostgreSQL's port: a worker that keeps trying the simulator's while
    # that is away could be given the same port as its own, connect to itself, and keep the simulator out.
    for port in random.sample(range(20_000, 32_000), 100):
        if _is_free(host, port):
            return port
    raise UpError(f"no free port between 20000 and 32000 on {host}")
