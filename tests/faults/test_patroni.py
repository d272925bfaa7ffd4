"""Patroni with three nodes and a synchronous standby: the primary is lost again and again (killed, hung, or switched
over), and nothing that was accepted is. After each promotion the service is back within two seconds.

Long form only. Needs the program `patroni` with its Raft store, which PostgreSQL's account must be able to run:
Debian's packages `patroni` and `python3-pysyncobj`, or `patroni[raft,psycopg3]` and `psycopg-binary` from the package
index.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import msgspec
import psutil
import pytest

from heliograph.base.database.migrate import migrate
from heliograph.base.embedded.install import Install, SystemUser, account_for, install_for
from tests import ports
from tests.faults.bystanders import Bystanders
from tests.judge import judge, until_settled
from tests.load import Client, Load
from tests.processes import LONG, WINDOW, descendants, installation, until, until_true

#: How the primary is lost, in turn.
WAYS = ("kill", "hang", "switchover", "kill", "hang")
#: Seconds from the promotion of a new primary to the first accepted message. It takes a tenth to half a second, on a
#: machine with three times the load it can handle.
BACK = 2.0
#: The longest time without an accepted message, in seconds. Patroni alone waits 20 s for a silent primary.
GAP = 60.0
PASSWORD = "geheim"
SESSIONS = 2

pytestmark = [
    pytest.mark.lasts(300),
    pytest.mark.skipif(not LONG, reason="fail-overs take minutes: HELIOGRAPH_FAULTS=long"),
    pytest.mark.skipif(shutil.which("patroni") is None, reason="the program `patroni` is missing"),
]


class Node:
    """One of three nodes: Patroni, and the PostgreSQL that it runs."""

    def __init__(self, home: Path, number: int, account: SystemUser, install: Install) -> None:
        self.name = f"node{number}"
        self.home = home / self.name
        self._held = [ports.hold() for _ in range(3)]
        self.rest, self.raft, self.port = map(ports.number, self._held)
        self._account, self._install = account, install
        self._process: subprocess.Popen[bytes] | None = None

    def write_configuration(self, nodes: list[Node]) -> None:
        """Write Patroni's configuration; JSON is YAML."""
        for folder in (self.home, self.home / "raft", self.home / "run"):
            folder.mkdir(exist_ok=True)
            self._account.own(folder)
        user = {"username": "postgres", "password": PASSWORD}
        parameters = {"unix_socket_directories": str(self.home / "run"), "shared_buffers": "64MB"}
        settings: dict[str, Any] = {
            "scope": "heliograph",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self.rest}", "connect_address": f"127.0.0.1:{self.rest}"},
            "raft": {
                "data_dir": str(self.home / "raft"),
                "self_addr": f"127.0.0.1:{self.raft}",
                "partner_addrs": [f"127.0.0.1:{other.raft}" for other in nodes if other is not self],
            },
            "bootstrap": {
                "dcs": {
                    "ttl": 20,
                    "loop_wait": 2,
                    "retry_timeout": 3,
                    "synchronous_mode": True,
                    "postgresql": {"use_pg_rewind": True, "parameters": {"wal_log_hints": "on"}},
                },
                "initdb": ["data-checksums", {"encoding": "UTF8"}],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": f"127.0.0.1:{self.port}",
                "data_dir": str(self.home / "data"),
                "bin_dir": str(self._install.binaries),
                "pgpass": str(self.home / "pgpass"),
                "authentication": {"superuser": user, "replication": user, "rewind": user},
                "pg_hba": [f"host {what} all 127.0.0.1/32 scram-sha-256" for what in ("all", "replication")]
                + ["local all all trust"],
                "parameters": parameters,
            },
        }
        file = self.home / "patroni.yml"
        file.write_bytes(msgspec.json.encode(settings))
        self._account.own(file)

    def start(self) -> None:
        """Start Patroni, the first time or again."""
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["patroni", str(self.home / "patroni.yml")],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.home,
                start_new_session=True,
                **self._account.spawn(),
            )

    def signal(self, number: signal.Signals) -> None:
        """Signal Patroni and every process of its PostgreSQL."""
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _all(self) -> list[psutil.Process]:
        found = []
        if self._process is not None and self._process.poll() is None:
            found += [psutil.Process(self._process.pid), *descendants(self._process.pid)]
        note = self.home / "data" / "postmaster.pid"
        with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
            server = psutil.Process(int(note.read_text().splitlines()[0]))
            if str(self.home) in " ".join(server.cmdline()):
                found += [server, *server.children(recursive=True)]
        return found

    def kill(self) -> None:
        """kill -9 of every process, hung or not."""
        for _ in range(50):
            running = self._all()
            if not running:
                break
            self.signal(signal.SIGKILL)
            psutil.wait_procs(running, timeout=0.2)
        if self._process is not None:
            self._process.wait()

    def release_ports(self) -> None:
        """Release the node's ports; after `kill`."""
        for held in self._held:
            held.close()

    async def switch_over(self) -> None:
        """Switch over to another node, as an operator does before maintenance."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://127.0.0.1:{self.rest}/switchover", json={"leader": self.name}) as answer,
        ):
            assert answer.status in (200, 202), await answer.text()

    async def role(self) -> str:
        """The role that it reports: `primary`, `replica`, or nothing."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
                session.get(f"http://127.0.0.1:{self.rest}/patroni") as answer,
            ):
                said = msgspec.json.decode(await answer.read())
                if said.get("state") == "running":
                    return {"master": "primary"}.get(said["role"], said["role"])
        return ""


@contextlib.asynccontextmanager
async def cluster(home: Path) -> AsyncIterator[tuple[list[Node], str]]:
    """Three nodes, and a URL with all of them."""
    account = account_for(home, home / "data")
    install = await asyncio.to_thread(install_for, home, account)
    try:
        subprocess.run(["patroni", "--version"], check=True, capture_output=True, cwd="/", **account.spawn())
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"PostgreSQL's account cannot run `patroni`: {error}")
    nodes = [Node(home, number, account, install) for number in (1, 2, 3)]
    account.own(home)
    try:
        for node in nodes:
            node.write_configuration(nodes)
            node.start()
        await until_healthy(nodes)
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        yield nodes, f"postgresql://postgres:{PASSWORD}@{hosts}/postgres?sslmode=disable"
    finally:
        for node in nodes:
            node.kill()
            node.release_ports()


async def primary(nodes: list[Node]) -> Node | None:
    roles = await asyncio.gather(*(node.role() for node in nodes))
    return next((node for node, role in zip(nodes, roles, strict=True) if role == "primary"), None)


async def until_healthy(nodes: list[Node]) -> None:
    """Wait until there is a primary with a synchronous standby."""

    async def ready() -> bool:
        first = await primary(nodes)
        if first is None or sorted([await node.role() for node in nodes])[0] == "":
            return False
        conn = await asyncpg.connect(
            host="127.0.0.1", port=first.port, user="postgres", password=PASSWORD, ssl=False, timeout=5
        )
        try:
            count = await conn.fetchval(
                "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'"
            )
            return bool(count)
        finally:
            await conn.close()

    try:
        await until_true(ready, within=180)
    except TimeoutError:
        raise AssertionError("\n".join((node.home / "log").read_text()[-2000:] for node in nodes)) from None


@pytest.mark.timeout(len(WAYS) * 300 + 600)
async def test_fail_overs_under_load(public_place: Path, tmp_path: Path) -> None:
    async with cluster(public_place) as (nodes, url):
        await migrate(url)
        own = f"{url}&target_session_attrs=read-write"
        async with installation(own, tmp_path, sessions=SESSIONS) as made:
            api, worker = await made.api(), await made.worker()
            await worker.ready()
            async with Client(made.base_url, made.key) as client:
                await until_true(partial(client.ask, "GET", "/health"))
            gaps: list[float] = []
            backs: list[float] = []
            async with Load(made.base_url, made.key) as load, Bystanders(made, load) as bystanders:
                await load.until_sent(20)
                for way in WAYS:
                    lost = await primary(nodes)
                    assert lost is not None
                    began = time.monotonic()
                    # If it hangs, nobody's connection is closed.
                    if way == "switchover":
                        await lost.switch_over()
                    else:
                        lost.signal(signal.SIGSTOP if way == "hang" else signal.SIGKILL)
                    rest = [node for node in nodes if node is not lost]
                    with bystanders.during_fault():
                        await until_true(partial(primary, rest), within=GAP)
                        moved = time.monotonic()
                        seen = len(load.answers)
                        await until(
                            lambda moved=moved: any(one.status == 202 and one.asked > moved for one in load.answers),
                            within=GAP,
                        )
                    # Messages accepted before we saw the promotion took no time.
                    first = min(one.at for one in load.answers[seen:] if one.status == 202)
                    backs.append(max(0.0, first - moved))
                    gaps.append(longest_outage(load, began))
                    if way != "switchover":
                        lost.kill()
                        lost.start()
                    await until_healthy(nodes)
                    await bystanders.after_fault()
                bystanders.judge("fail-overs")
            assert [api.status, worker.status] == [None, None], "they live through it"
            assert max(gaps) < GAP
            assert max(backs) <= BACK, backs
            await until_settled(own, within=120)
            verdict = await judge(made, load.ledger, in_flight=2 * len(WAYS) * WINDOW * SESSIONS)
            assert not made.complaints
            print(verdict, f"without a 202: {[round(gap, 1) for gap in gaps]} s")
            said = ", ".join(f"{way} {back:.2f}" for way, back in zip(WAYS, backs, strict=True))
            print(f"back after the promotion: {said} s")


def longest_outage(load: Load, since: float) -> float:
    """The longest time without an accepted message."""
    times = sorted([since, *(one.at for one in load.answers if one.status == 202 and one.at > since)])
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)
