"""A running `heliograph up` for one test, with its processes, run by its data directory's owner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from tests.processes import Program, alive, descendants, environment, until

#: The order in which the processes have to end; those of one stage end together.
STAGES = (("api",), ("worker",), ("graph", "smsc"), ("postgres",))
PARTS = tuple(name for stage in STAGES for name in stage)
NOBODY = 65534
#: Runs a command as an ordinary user who may read everything, since the sources may be in root's home. It writes as an
#: ordinary user, and PostgreSQL accepts it as one.
AS_NOBODY = (
    *("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--pdeathsig", "KILL"),
    *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
)


def accounts() -> list[int]:
    """The account that runs the tests, and an ordinary user as well if that is root."""
    found = [os.geteuid()]
    if found == [0] and subprocess.run([*AS_NOBODY, sys.executable, "-c", ""], capture_output=True).returncode == 0:
        found.append(NOBODY)
    return found


class Up:
    """A running `heliograph up`."""

    def __init__(self, program: Program, credentials: Path) -> None:
        self.program = program
        self.file = credentials
        self.credentials: dict[str, Any] = msgspec.json.decode(credentials.read_bytes())

    @property
    def url(self) -> str:
        return str(self.credentials["base_url"])

    @property
    def database(self) -> str:
        return str(self.credentials["database_url"])

    def parts(self) -> dict[str, list[psutil.Process]]:
        """Its processes, by name."""
        found: dict[str, list[psutil.Process]] = {name: [] for name in PARTS}
        for process in psutil.Process(self.program.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                command = process.cmdline() or [""]
                ours = command[1:3] == ["-m", "heliograph"]
                kind = command[3 + (command[3] == "simulate")] if ours else os.path.basename(command[0])
                # A process that has just been forked, or has just ended, does not have its name.
                found.get(kind, []).append(process)
        return found

    def part(self, name: str) -> psutil.Process:
        """The only process with that name."""
        (process,) = self.parts()[name]
        return process

    async def killed(self, name: str) -> None:
        """kill -9 one of its processes, and wait for its replacement."""
        victim = self.part(name)
        victim.kill()
        await until(lambda: [one.pid for one in self.parts()[name]] not in ([], [victim.pid]))

    async def stopped(self, number: signal.Signals) -> None:
        """Stop it; asserts that it exits, that its processes stop in order, and that none is left."""
        parts = self.parts()
        everything = descendants(self.program.pid)
        self.program.send(number)
        while self.program.status is None:
            # Checked from the last to the first: a process that has ended before an earlier one is checked ended before
            # it.
            lives = {name: any(alive(one) for one in parts[name]) for name in reversed(PARTS) if parts[name]}
            stages = [[lives[name] for name in stage if name in lives] for stage in reversed(STAGES)]
            found = [one for stage in stages for one in sorted(stage, reverse=True)]
            assert found == sorted(found, reverse=True), lives
            await asyncio.sleep(0.01)
        assert self.program.status == 0, self.program.err
        assert not [process for process in everything if alive(process)]


@contextlib.asynccontextmanager
async def up(place: Path, *arguments: str, **settings: str) -> AsyncIterator[Up]:
    """`heliograph up` on `place`, ready, run by its owner. Whatever is left of it at the end is killed."""
    credentials = place / "given.json"
    credentials.unlink(missing_ok=True)
    options = ["--data-dir", str(place / "data"), "--credentials-file", str(credentials), *arguments]
    if "--port" not in arguments:
        options += ["--port", "0"]
    settings = {
        "HOME": str(place),
        "HELIOGRAPH_LEASE_SECONDS": "3",
        "HELIOGRAPH_UNCERTAIN_GRACE_SECONDS": "2",
    } | settings
    log = place / f"up-{len(list(place.glob('*.err')))}"
    through = () if place.stat().st_uid == os.geteuid() else AS_NOBODY
    program = await Program.start("up", *options, log=log, environment=environment(**settings), through=through)
    try:
        # The last part of its output, for people or as JSON.
        ready = ("Ctrl-C stops everything", "}\n")
        try:
            await until(lambda: any(end in program.out for end in ready) or program.status is not None, within=300)
        except TimeoutError:
            raise AssertionError(f"it is not ready: {program.out}\n{program.err}") from None
        assert program.status is None, program.err
        yield Up(program, credentials)
    finally:
        for process in [
            *descendants(program.pid),
            *([] if program.status is not None else [psutil.Process(program.pid)]),
        ]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        await program.kill()
