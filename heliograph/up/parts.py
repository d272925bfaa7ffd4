"""The processes that `up` supervises: their arguments and environment, and their restart whenever one ends.

They are the same as in production, and end with the supervisor (Linux: PDEATHSIG), so that `kill -9` leaves nothing
behind but PostgreSQL, which the next start adopts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from uuid import UUID

from heliograph.base.embedded.waiting import QUIET, ends
from heliograph.base.process.settings import Settings, unknown_names
from heliograph.base.process.signals import end_with_parent
from heliograph.demo.credentials import LOCAL_WEBHOOKS, Credentials, Smsc
from heliograph.up import ports

#: Initial and maximum pause before a part that ended is restarted, in seconds.
PAUSE, LONGEST_PAUSE = 0.1, 5.0
#: A part that ran this long is considered healthy: its next pause is the initial one again.
WELL = 10.0
#: How long a part that drains nothing may take to end after SIGTERM, and one that does beyond its drain, in seconds.
PATIENCE, SPARE = 30.0, 10.0
#: Used for migrations only, which no part runs.
OWNER_URL = "HELIOGRAPH_OWNER_DATABASE_URL"


class Part:
    """One supervised process."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        environment: Mapping[str, str],
        say: Callable[[str], None],
        *,
        patience: float = PATIENCE,
        quiet: float = QUIET,
    ) -> None:
        """`patience`: how long it may take to end after SIGTERM; `quiet`: after how much of that this is said."""
        self._name = name
        self._arguments = arguments
        self._environment = environment
        self._say = say
        self._patience, self._quiet = patience, quiet
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The process that runs now."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process, and restart it whenever it ends."""
        self._task = asyncio.create_task(self._keep())

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """SIGTERM, then SIGKILL after a while, or as soon as `hurry` is set."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await self._ended(process, hurry or asyncio.Event())
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _ended(self, process: asyncio.subprocess.Process, hurry: asyncio.Event) -> None:
        who, end = f"{self._name} (process {process.pid})", asyncio.create_task(process.wait())
        hurrying = asyncio.create_task(_killed(process, when=hurry))
        try:
            if not await ends(end, self._patience, who, self._say, quiet=self._quiet):
                self._say(f"{who} has not stopped within {self._patience:g} s, and is killed.")
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await end
        finally:
            hurrying.cancel()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause = PAUSE
        while not self._stopping:
            began = loop.time()
            try:
                self._process = await self._launched()
            except OSError as error:
                # Out of memory, file descriptors or processes, which may pass.
                self._say(f"{self._name} cannot be started: {error.strerror}; trying again.")
            else:
                status = await self._process.wait()
                if self._stopping:
                    return
                self._say(f"{self._name} ended ({status}); restarting it.")
            pause = PAUSE if loop.time() - began > WELL else min(pause * 2, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _launched(self) -> asyncio.subprocess.Process:
        """Raises OSError."""
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "heliograph",
            *self._arguments,
            env=dict(self._environment),
            stdin=asyncio.subprocess.DEVNULL,
            # A separate session keeps the terminal's Ctrl-C from reaching it, so that we control the order of stopping.
            start_new_session=True,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )


async def _killed(process: asyncio.subprocess.Process, *, when: asyncio.Event) -> None:
    await when.wait()
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def api_patience(settings: Settings) -> float:
    """How long a web process may take to end after SIGTERM, in seconds."""
    return settings.not_ready_seconds + settings.drain_seconds + SPARE


def worker_patience(settings: Settings) -> float:
    """How long a worker may take to end after SIGTERM, in seconds: it lets work finish, then records its results, each
    for at most as long as it drains."""
    return 2 * settings.drain_seconds + SPARE


def smsc(at: Smsc, config: Path) -> list[str]:
    """The command line of the simulated SMSC."""
    return [
        *("simulate", "smsc", "--host", at.host, "--port", str(at.port), "--quiet"),
        *("--config", str(config)),
    ]


def graph(credentials: Credentials, app: UUID, config: Path) -> list[str]:
    """The command line of the simulated Cloud API."""
    at = credentials.whatsapp
    return [
        *("simulate", "graph", "--host", at.host, "--port", str(at.port), "--quiet"),
        *("--config", str(config), "--webhook-url", f"{credentials.base_url}/in/whatsapp/{app}"),
    ]


def part_environment(settings: Settings, *, host: str, is_embedded: bool) -> dict[str, str]:
    """The environment of the API and the worker: what this start determined, and ours, which overrides defaults. Of a
    database of one's own they find the URL as this process did, so that they follow a file in which it is changed.

    Webhooks may go to loopback only while the API listens there: then anybody who can register one is already on this
    machine. If it listened elsewhere, it would give others access to services on loopback.
    """
    usual = {
        "HELIOGRAPH_LOG_LEVEL": "warning",
        "HELIOGRAPH_LOG_FORMAT": "text",
        "HELIOGRAPH_NOT_READY_SECONDS": "0",  # no load balancer in front of it has to be informed
    }
    if ports.is_loopback(host):
        usual |= LOCAL_WEBHOOKS
    found = {"HELIOGRAPH_SECRET_KEY": settings.secret_key}
    if is_embedded:
        found |= {"HELIOGRAPH_DATABASE_URL": settings.database_url, "HELIOGRAPH_DATABASE_DIRECT_URL": ""}
    if settings.other_secret_key:
        found["HELIOGRAPH_OTHER_SECRET_KEY"] = settings.other_secret_key
    # This process has already reported misspelled ones.
    unknown = unknown_names()
    given = {name: value for name, value in os.environ.items() if name not in unknown and name != OWNER_URL}
    return usual | given | found


def outside_environment() -> dict[str, str]:
    """The environment of the simulators: they represent the outside world, so they get none of our settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("HELIOGRAPH_", "PG"))}
