"""Starting and stopping everything: one sequence, from the data directory to the last part, and back.

The rule nobody may break: parts stop in the order in which work flows (web, worker, simulators, PostgreSQL), so that
nothing is accepted that cannot be stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.crypto import Unsealable
from heliograph.base.database.migrate import migrate
from heliograph.base.database.pool import CLIENT_SETTINGS, is_down, open_pool, set_role
from heliograph.base.database.roles import RECONNECT, RoleMissing, owner_needed
from heliograph.base.embedded import files
from heliograph.base.embedded.files import Layout
from heliograph.base.embedded.install import PostgresError
from heliograph.base.embedded.server import Embedded, default_data_dir
from heliograph.base.network.connecting import connect
from heliograph.base.network.failures import reason
from heliograph.base.process import private_files
from heliograph.base.process.settings import Settings, SettingsError, demand_secret_key, from_environment
from heliograph.base.process.signals import KINDS
from heliograph.demo import seeding
from heliograph.demo.credentials import (
    Credentials,
    Smsc,
    new_graph,
    write_credentials,
    write_simulators,
)
from heliograph.http.server.server import place_of
from heliograph.people import links
from heliograph.up import parts, ports, secret_keys, welcome
from heliograph.up.claim import claim
from heliograph.up.errors import UpError, unusable
from heliograph.up.parts import LONGEST_PAUSE, PAUSE, Part
from heliograph.up.welcome import Welcome

#: The credentials in the data directory, once the API answers; and until then, for a start that follows one that was
#: interrupted, which would create other keys.
CREDENTIALS, STARTING = "credentials.json", "credentials.starting.json"

Result = TypeVar("Result")


class Stopped(Exception):
    """It was told to stop while it was starting."""


class UpOptions(msgspec.Struct, frozen=True):
    """The command line of `heliograph up`."""

    host: str = "127.0.0.1"
    #: 0 means any free port.
    port: int = 8080
    data_dir: Path | None = None
    api_processes: int = 1
    #: Where to write the credentials as JSON; None: `credentials.json` in the data directory.
    credentials_file: Path | None = None


async def up(
    options: UpOptions,
    *,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
    on_ready: Callable[[Welcome], None] = welcome.show,
) -> int:
    """Run everything until SIGINT, SIGTERM or SIGHUP; returns the exit status. A second SIGINT or SIGTERM ends the
    parts at once, and PostgreSQL in order.

    `say` gets lines for people; `on_ready` the credentials, once the API answers. Raises UpError, PostgresError and
    SettingsError when it cannot start.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked(number: signal.Signals) -> None:
        # Of a terminal that is closed, the kernel and the shell each send a SIGHUP.
        if stop.is_set() and number is not signal.SIGHUP:
            hurry.set()
        stop.set()

    for number in KINDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, asked, number)
    # Checked before anything is created that a refused start would leave behind.
    if options.credentials_file is not None:
        _demand_writable(options.credentials_file.absolute())
    with ports.reserved(options.host, options.port) as port, contextlib.ExitStack() as held:
        with contextlib.suppress(Stopped):
            return await _run_parts(options, port, held, stop, hurry, say, on_ready)
        return 0


async def _run_parts(
    options: UpOptions,
    port: int,
    held: contextlib.ExitStack,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    say: Callable[[str], None],
    on_ready: Callable[[Welcome], None],
) -> int:
    settings = from_environment()
    if settings.console_listen:
        # Like the API's port: its processes share it, and another installation's would, too.
        where = place_of(settings.console_listen)
        held.enter_context(ports.reserved(*where, options=("HELIOGRAPH_CONSOLE_LISTEN", "HELIOGRAPH_CONSOLE_LISTEN")))
    data_dir = files.absolute(options.data_dir or default_data_dir())
    try:
        files.create(data_dir)
    except OSError as error:
        why = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise UpError(f"cannot use the data directory {data_dir}: {why}; choose another with --data-dir") from None
    settings = await secret_keys.ensured(settings, data_dir)
    demand_secret_key(settings)
    _demand_outside(settings, data_dir)
    database: Embedded | None = None
    if not settings.database_url:
        archive = files.absolute(Path(settings.wal_archive)) if settings.wal_archive else None
        database = Embedded(data_dir / "postgres", on_progress=say, archive=archive)
        try:
            await _unless(stop, database.start())
        finally:
            _leave(data_dir)
        settings = msgspec.structs.replace(
            settings, database_url=database.url, owner_database_url=database.owner_url, database_direct_url=""
        )
    running: list[Part] = []
    watcher: asyncio.Task[None] | None = None
    claimed: asyncio.Task[None] | None = None
    try:
        claimed = await _unless(stop, claim(settings, say))
        await _unless(stop, _migrate(settings, say))
        base_url, is_local = f"http://{ports.shown(options.host)}:{port}", ports.is_loopback(options.host)
        credentials, app, are_new, dashboard, console = await _prepare(
            settings, data_dir, base_url, held, is_local=is_local
        )
        environment = parts.part_environment(settings, host=options.host, is_embedded=database is not None)
        their = from_environment(environment)
        outside = parts.outside_environment()
        serve = ["api", "--host", options.host, "--port", str(port)]
        running = [
            Part("simulated SMSC", parts.smsc(credentials.smsc, data_dir / "smsc.json"), outside, say),
            Part("simulated Cloud API", parts.graph(credentials, app, data_dir / "graph.json"), outside, say),
            Part("worker", ["worker"], environment, say, patience=parts.worker_patience(their)),
            *(
                Part("api", serve, environment, say, patience=parts.api_patience(their))
                for _ in range(options.api_processes)
            ),
        ]
        for part in (*running[:2], *running[3:]):
            part.start()
        # The worker queries the simulated Cloud API for its numbers as soon as it runs; if that were not up yet, it
        # would retry only seconds later.
        await ports.listens(credentials.whatsapp.host, credentials.whatsapp.port)
        running[2].start()
        if database is not None:
            watcher = asyncio.create_task(_keep_database(database, say))
        # In this order: the API's health status is up to two seconds old, and without a worker it is degraded.
        credentials.whatsapp.phone_number_id = await _number(settings.direct_url, credentials, stop)
        await ports.answers(options.host, port, stop)
        if not stop.is_set():
            kept = data_dir / CREDENTIALS
            path = options.credentials_file or kept
            try:
                for file in {kept, path}:
                    write_credentials(file, credentials)
                (data_dir / STARTING).unlink(missing_ok=True)
            except OSError as error:
                raise UpError(f"the credentials cannot be written to {path}: {error.strerror}") from None
            on_ready(Welcome(credentials, path, are_new, dashboard, console))
        await stop.wait()
        say("Stopping; a second signal ends work in progress at once.")
        return 0
    finally:
        if watcher is not None:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        for together in (running[3:], running[2:3], running[:2]):
            await asyncio.gather(*(part.stop(hurry) for part in together))
        if claimed is not None:
            claimed.cancel()
            await asyncio.gather(claimed, return_exceptions=True)
        if database is not None:
            await database.stop()


async def _unless(stop: asyncio.Event, step: Coroutine[Any, Any, Result]) -> Result:
    """The result of a step that may take minutes, such as a recovery. Raises Stopped once `stop` is set, and ends the
    step."""
    working, stopping = asyncio.create_task(step), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Stopped
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


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


async def _migrate(settings: Settings, say: Callable[[str], None]) -> None:
    """Raises UpError and MigrationError."""
    owner = settings.owner_database_url or settings.direct_url
    try:
        await migrate(owner, application=settings.direct_url, on_wait=say, on_newer=say)
        if settings.database_direct_url and await _set_role(settings.direct_url):
            say(RECONNECT)
    except RoleMissing as error:
        raise UpError(str(error)) from None
    except asyncpg.InsufficientPrivilegeError as error:
        raise UpError(owner_needed(error, owner_url=settings.owner_database_url)) from None
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise unusable(error) from error


async def _set_role(url: str) -> bool:
    """`set_role` for the role of `url`."""
    conn = await connect(url, server_settings=CLIENT_SETTINGS)
    try:
        return await set_role(conn)
    finally:
        await conn.close(timeout=2)


async def _prepare(
    settings: Settings, data_dir: Path, base_url: str, held: contextlib.ExitStack, *, is_local: bool
) -> tuple[Credentials, UUID, bool, str, str]:
    """Credentials, the id of the simulated app, whether a key is new, and the URLs of dashboard and console. `held`
    reserves the simulators' ports."""
    shown = _kept(data_dir / CREDENTIALS)
    known = _kept(data_dir / STARTING) or shown
    smsc = known.smsc if known else Smsc("127.0.0.1", 0, "heliograph", secrets.token_urlsafe(6))
    graph = known.whatsapp if known else new_graph()
    # The simulators keep their ports if these are free, so that a worker that is still running finds them again.
    for simulator in (smsc, graph):
        simulator.port = held.enter_context(ports.reserved_if_free(simulator.host, simulator.port))
    pool = await open_pool(settings.direct_url, size=1, wait=10.0)
    try:
        async with pool.acquire() as conn:
            organization_id, live, test = await seeding.ensure(conn, settings, smsc=smsc, known=known)
            app = await seeding.ensure_whatsapp(conn, settings, organization_id, graph)
            token = await seeding.owners_link(conn, organization_id)
            setup = await seeding.operators_link(conn)
    except Unsealable:
        raise UpError(
            "the secret key does not open what is encrypted in the database: put back the file"
            f" {data_dir / secret_keys.FILE} that was there before, or set HELIOGRAPH_SECRET_KEY to the key used before"
        ) from None
    finally:
        await pool.close()
    credentials = Credentials(base_url, str(organization_id), live, test, settings.direct_url, smsc, graph, is_local)
    write_credentials(data_dir / STARTING, credentials)
    write_simulators(data_dir / "smsc.json", data_dir / "graph.json", credentials)
    are_new = shown is None or (shown.live_key, shown.test_key) != (live, test)
    dashboard = settings.public_url or base_url
    enter = links.address(dashboard, token) if token else f"{dashboard.rstrip('/')}/"
    console = settings.console_url or (f"http://{settings.console_listen}" if settings.console_listen else dashboard)
    run = links.address(console, setup, realm="console") if setup else f"{console.rstrip('/')}/console"
    return credentials, app, are_new, enter, run


def _kept(path: Path) -> Credentials | None:
    """The credentials of an earlier start; None: there are none. Raises UpError if they cannot be read: a start without
    them revokes its keys and creates others."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Credentials)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UpError(
            f"{path}, which has the keys of the demo organization, cannot be read: {reason(error)}; make it readable"
            " for this account, or remove it to have the keys replaced"
        ) from None


async def _number(url: str, credentials: Credentials, stop: asyncio.Event) -> str:
    """Return the id of the simulated WhatsApp number, once the worker has fetched it and its templates. A database that
    is restarted meanwhile is waited for, as the parts do."""
    while not stop.is_set():
        try:
            conn = await connect(url, server_settings=CLIENT_SETTINGS)
            try:
                while not stop.is_set():
                    id = await seeding.mirrored(conn, UUID(credentials.organization_id))
                    if id is not None:
                        return id
                    await asyncio.sleep(0.05)
            finally:
                await conn.close(timeout=2)
        except Exception as error:
            if not is_down(error):
                raise
            await asyncio.sleep(PAUSE)
    return ""


def _leave(data_dir: Path) -> None:
    """Root leaves what a start of the database has created, however that ended, to the account that the data directory
    belongs to, such as a service's, if PostgreSQL runs under that one. Whatever is written later, by `private_files`,
    belongs to it anyway."""
    home = data_dir / "postgres"
    if not home.exists():
        return
    cluster = Layout(home).data
    if not cluster.exists() or cluster.stat().st_uid == data_dir.stat().st_uid:
        private_files.give(home, like=data_dir, deep=False)
        private_files.give(data_dir / secret_keys.LOCK, like=data_dir)


def _demand_writable(file: Path) -> None:
    """Raises UpError if the credentials cannot be written there."""
    nearest = next(folder for folder in file.parents if folder.exists())
    if file.is_dir() or not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UpError(f"the credentials cannot be written to {file}: choose another file with --credentials-file")


def _demand_outside(settings: Settings, data_dir: Path) -> None:
    """Raises SettingsError if WAL would be archived next to the data that it is meant to restore."""
    if settings.wal_archive and Path(settings.wal_archive).resolve().is_relative_to(data_dir.resolve()):
        raise SettingsError(
            f"HELIOGRAPH_WAL_ARCHIVE is {settings.wal_archive}, in the data directory {data_dir}: choose a directory"
            " outside of it, better on another disk"
        )
