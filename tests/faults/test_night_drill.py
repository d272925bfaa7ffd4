"""The night drill: every alert is provoked for real, fires in a real Prometheus, is remedied with the commands in its
section of the runbook, and clears.

The short form covers the alerts that can be provoked at the same time; the long form adds those that need the database,
every process or much memory, one after the other.
"""

from __future__ import annotations

import asyncio
import re
import signal
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import aiohttp
import asyncpg
import msgspec
import pytest

from heliograph.base.database.migrate import migrate
from heliograph.sms.callbacks import addresses
from heliograph.sms.dispatch import suppliers
from tests.embedded import Start
from tests.house.project import ROOT
from tests.load import Client, Load
from tests.ports import held_row
from tests.processes import LONG, Installation, Program, installation, kill, until, until_true
from tests.prometheus import Prometheus, watching
from tests.standby import PRIMARY, following

RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
#: Provoked at the same time.
TOGETHER = {
    "HeliographHeld",
    "HeliographSupplierDown",
    "HeliographOldSnapshot",
    "HeliographPartitionsMissing",
    "HeliographRetentionLate",
    "HeliographBackupOld",
    "HeliographCallbacksWaiting",
    "HeliographUnknownAttempts",
}
#: Before them: a supplier cannot be slow and down at once, and connections that are refused hide everything else.
FIRST = {"HeliographQueueLate"}
NOWHERE = {"HeliographNoRoute"}
REFUSED = {"HeliographConnectionsRefused"}
#: While a worker is being drained.
STALLED = {"HeliographLoopLag"}
#: One after the other, in the long form.
ALONE = {
    "HeliographProcessGone",
    "HeliographNoWorker",
    "HeliographDown",
    "HeliographDatabaseAway",
    "HeliographRefusals",
    "HeliographAcceptSlow",
    "HeliographWebhooksFailing",
    "HeliographCircuitOpen",
    "HeliographStepFailing",
    "HeliographStandbyUnread",
    "HeliographCheckFailed",
    "HeliographCheckWarns",
    "HeliographDeferred",
}
#: Alone, in the long form: it takes some 400 MB.
LARGE = {"HeliographMemory"}
#: More than these rules' thresholds, see `tests.prometheus.SCALED`.
ENOUGH = 8
PASSPHRASE = "a passphrase of the drill"

pytestmark = [pytest.mark.lasts(90), pytest.mark.timeout(900)]


def section(alert: str) -> str:
    """The runbook's section on an alert."""
    return RUNBOOK.split(f"\n## {alert}\n")[1].split("\n## ")[0]


def test_every_alert_is_drilled() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", (ROOT / "deploy" / "prometheus" / "heliograph.rules.yml").read_text()))
    assert alerts == FIRST | NOWHERE | REFUSED | STALLED | TOGETHER | ALONE | LARGE


class Drill:
    """A monitored installation, and an operator at its command line."""

    def __init__(self, made: Installation, prometheus: Prometheus, owner: str) -> None:
        self.made, self.prometheus, self.owner = made, prometheus, owner
        self._commands = 0

    async def runbook_command(self, alert: str, *words: str) -> Program:
        """Run a command that the runbook names for this alert."""
        named = f"heliograph {' '.join(words[: 1 if words[0] in ('migrate', 'doctor') else 2])}"
        assert named in section(alert), f"the runbook on {alert} does not name `{named}`"
        return await self.run(*words)

    async def run(self, *words: str) -> Program:
        """Run a command."""
        self._commands += 1
        program = await Program.start(
            *words,
            log=self.made.place / f"command-{self._commands}",
            environment=self.made.environment
            | {"HELIOGRAPH_OWNER_DATABASE_URL": self.owner, "HELIOGRAPH_BACKUP_PASSPHRASE": PASSPHRASE},
            forked=True,
        )
        # `doctor` exits with 1 if anything is wrong, as it is here.
        assert await program.ended() in ((0, 1) if words[0] == "doctor" else (0,)), program.err
        return program

    async def run_checks(self) -> None:
        """Run the checks now instead of within a minute."""
        await self.as_owner("UPDATE timers SET next_at = now() WHERE name = 'findings'")

    async def is_retrying(self) -> bool:
        """Whether a message has been tried, and waits for a retry."""
        conn = await asyncpg.connect(self.owner)
        try:
            return bool(await conn.fetchval("SELECT EXISTS (SELECT FROM queue WHERE attempt > 0 AND begun_at IS NULL)"))
        finally:
            await conn.close()

    async def as_owner(self, statement: str) -> None:
        conn = await asyncpg.connect(self.owner)
        try:
            await conn.execute(statement)
        finally:
            await conn.close()


@asynccontextmanager
async def start_drill(url: str, owner: str, place: Path, **settings: str) -> AsyncIterator[Drill]:
    """An installation whose metrics are scraped; no alert fires yet."""
    (place / "logs").mkdir()
    with held_row(6) as ports:
        listen = {"HELIOGRAPH_METRICS_LISTEN": f"127.0.0.1:{ports[0]}", "HELIOGRAPH_LOG_LEVEL": "info"}
        async with (
            installation(url, place / "logs", **listen, **settings) as made,
            watching(place / "prometheus", ports) as prometheus,
        ):
            yield Drill(made, prometheus, owner)


async def test_what_can_be_wrong_at_once(
    database_url: str, owner_url: str, as_administrator: Callable[[str], Awaitable[None]], tmp_path: Path
) -> None:
    # Attempts of unknown outcome are not decided while this lasts.
    patient = {"HELIOGRAPH_UNCERTAIN_GRACE_SECONDS": "3600"}
    async with start_drill(database_url, owner_url, tmp_path, **patient) as drill:
        made, prometheus = drill.made, drill.prometheus
        api = await made.api()
        worker = await made.worker()
        await worker.ready()
        backups = ("backup", "take", "--to", str(tmp_path / "backups"))
        await drill.run(*backups)
        await prometheus.clears(FIRST | NOWHERE | REFUSED | STALLED | TOGETHER | ALONE | LARGE)

        # Lost connections cannot be replaced; those that watch the database are kept.
        name = urllib.parse.urlsplit(database_url).path.strip("/")
        await as_administrator(f'ALTER DATABASE "{name}" CONNECTION LIMIT 0')
        await as_administrator(END_CONNECTIONS)
        await prometheus.fires(REFUSED)
        (query,) = re.findall(r"`(SELECT datname, datconnlimit FROM pg_database)`", section(*REFUSED))
        await as_administrator(f"DO $$ BEGIN ASSERT ('{name}', 0) IN ({query}); END $$")
        await as_administrator(f'ALTER DATABASE "{name}" CONNECTION LIMIT -1')

        # The only supplier's destinations are restricted.
        await drill.run("supplier", "set", "main", "prefixes=25884")
        lost = await send_unserved(made)
        await prometheus.fires(NOWHERE)
        listed = await drill.runbook_command(
            *NOWHERE, "message", "list", "--failure", "destination_unreachable", "--json"
        )
        assert lost in [one["id"] for one in msgspec.json.decode(listed.out)]
        await drill.runbook_command(*NOWHERE, "route", "explain", "+258860000000")
        await drill.runbook_command(*NOWHERE, "supplier", "set", "main", "prefixes=")

        # More is sent than the supplier's rate allows.
        async with Load(made.base_url, made.key, pause=0.5):
            await drill.run("supplier", "set", "main", "rate=1")
            await prometheus.fires(FIRST)
            await drill.runbook_command("HeliographQueueLate", "queue", "list")
            await drill.runbook_command("HeliographQueueLate", "supplier", "set", "main", "rate=1000")
            await prometheus.clears(FIRST | NOWHERE)

        # Several problems at once. Callbacks arrive while the only worker is draining, which takes it some seconds.
        listed = await drill.runbook_command("HeliographCallbacksWaiting", "workers", "list", "--json")
        (one,) = msgspec.json.decode(listed.out)
        await drill.run("workers", "drain", one["name"], "--stay")
        await drill.run("hold", "add", "--kind", "webhook", "--reason", "the drill")
        silent = await send_unanswered(made)
        await made.smsc.stop()
        async with Client(made.base_url, made.key) as client:
            id = await client.send("+258841000001")
        await drill.as_owner("UPDATE backups SET taken_at = taken_at - interval '27 hours'")
        held = await block_retention(drill, owner_url)
        await drill.as_owner(DROP_PARTITIONS)
        forgotten = await asyncpg.connect(database_url, server_settings={"application_name": "forgotten report"})
        await forgotten.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM messages")
        stalling = asyncio.create_task(stall(api))
        await prometheus.fires(STALLED)
        stalling.cancel()
        await asyncio.gather(stalling, return_exceptions=True)
        await post_reports(drill)
        await prometheus.fires(TOGETHER)

        # Each is remedied by its section.
        await drill.runbook_command("HeliographCallbacksWaiting", "workers", "resume", one["name"])
        listed = await drill.runbook_command("HeliographHeld", "hold", "list", "--json")
        (hold,) = msgspec.json.decode(listed.out)
        assert hold["reason"] == "the drill"
        await drill.runbook_command("HeliographHeld", "hold", "release", hold["id"])
        shown = await drill.runbook_command("HeliographSupplierDown", "supplier", "show", "main")
        assert "main" in shown.out
        await drill.runbook_command("HeliographUnknownAttempts", "supplier", "list")
        shown = await drill.runbook_command("HeliographUnknownAttempts", "message", "show", silent, "--json")
        assert "unknown" in str(msgspec.json.decode(shown.out)["entries"][-1])
        # The grace period ends, and the attempts are decided.
        await drill.as_owner("UPDATE attempts SET started_at = started_at - interval '1 hour' WHERE state = 'unknown'")
        await drill.as_owner("UPDATE queue SET due_at = now() WHERE attempt > 0 AND begun_at IS NULL")
        await made.smsc.start()
        found = await end_oldest_transaction(database_url, section("HeliographOldSnapshot"))
        assert found == "forgotten report"
        await drill.runbook_command("HeliographPartitionsMissing", "migrate")
        await held.close()
        await drill.runbook_command("HeliographBackupOld", *backups)
        await prometheus.clears(TOGETHER | REFUSED | STALLED)
        async with Client(made.base_url, made.key) as client:

            async def delivered() -> bool:
                _, said = await client.ask("GET", f"/sms/messages/{id}")
                return bool(said["message"]["status"] == "delivered")

            await until_true(delivered)
        await forgotten.close()


async def send_unanswered(made: Installation) -> str:
    """Have the supplier accept messages without answering or reporting for the time being; returns one of their ids."""
    before, usual = made.smsc.counters.submits, made.smsc.options
    made.smsc.configure(swallow=1.0, receipt_delay=3600.0)
    async with Client(made.base_url, made.key) as client:
        ids = [await client.send(f"+25884200{n:04d}") for n in range(ENOUGH)]
    await until(lambda: made.smsc.counters.submits == before + ENOUGH)
    made.smsc.configure(swallow=usual.swallow, receipt_delay=usual.receipt_delay)
    return ids[0]


async def send_unserved(made: Installation) -> str:
    """The id of a message to a destination that no supplier serves, once the worker has noticed."""
    lost: list[str] = []
    numbers = count()
    async with Client(made.base_url, made.key) as client:

        async def failed() -> bool:
            await client.send(f"+25886{next(numbers):07d}")
            _, said = await client.ask("GET", "/sms/messages", params={"status": "failed"})
            lost.extend(one["id"] for one in said["items"])
            return bool(lost)

        await until_true(failed)
    return lost[0]


async def stall(program: Program) -> None:
    """Stop the process most of the time, as on an overloaded machine."""
    try:
        while True:
            program.send(signal.SIGSTOP)
            await asyncio.sleep(0.9)
            program.send(signal.SIGCONT)
            await asyncio.sleep(0.3)
    finally:
        program.send(signal.SIGCONT)


async def post_reports(drill: Drill) -> None:
    """Post delivery reports of an HTTP supplier, once the worker is drained."""
    made = drill.made
    conn = await asyncpg.connect(made.url)
    try:
        # It carries no messages.
        id = await suppliers.add(
            conn,
            suppliers.seal_key(made.settings),
            name="http",
            kind="africastalking",
            settings={"username": "acme"},
            secret=msgspec.json.encode({"secret": "a secret of the account"}).decode(),
        )
        await suppliers.set_state(conn, supplier="http", state="paused")
        await until_true(lambda: conn.fetchval("SELECT drained_at IS NOT NULL FROM workers"))
        address = addresses.address(msgspec.structs.replace(made.settings, public_url=made.base_url), id)
        async with aiohttp.ClientSession() as session:
            for n in range(ENOUGH):
                report = {"id": f"ATXid_{n}", "status": "Success", "phoneNumber": "+258842000000"}
                async with session.post(f"{address}/receipts", data=report) as answer:
                    assert answer.status == 200, await answer.text()
        assert await conn.fetchval("SELECT count(*) FROM supplier_callbacks") == ENOUGH
    finally:
        await conn.close()


async def block_retention(drill: Drill, owner: str) -> asyncpg.Connection:
    """Make retention two days late, and keep it from running while this connection is open."""
    held = await asyncpg.connect(owner)
    while True:
        await drill.as_owner(
            "UPDATE timers SET next_at = now(), done_until = now() - interval '2 days' WHERE name = 'forget'"
        )
        await held.execute("BEGIN")
        if await held.fetchval(
            "SELECT next_at <= now() AND done_until < now() - interval '1 day' FROM timers"
            " WHERE name = 'forget' FOR UPDATE"
        ):
            return held
        # A worker was quicker.
        await held.execute("ROLLBACK")


END_CONNECTIONS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'heliograph'
"""
DROP_PARTITIONS = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT relname FROM pg_class
                 WHERE relkind = 'r' AND relname ~ '^send_keys_2'
                   AND relname > 'send_keys_' || to_char(now() AT TIME ZONE 'UTC', 'YYYY_MM_DD')
    LOOP EXECUTE format('DROP TABLE %I', name); END LOOP;
END $$
"""


async def end_oldest_transaction(url: str, page: str) -> str:
    """End the oldest transaction, found and ended with the runbook's statements; returns its application's name."""
    (query,) = re.findall(r"`(SELECT pid, .*?)`", page)
    assert "pg_terminate_backend" in page
    conn = await asyncpg.connect(url)
    try:
        rows = await conn.fetch(query)
        oldest = next(row for row in rows if row["application_name"] == "forgotten report")
        await conn.fetchval("SELECT pg_terminate_backend($1)", oldest["pid"])
        return str(oldest["application_name"])
    finally:
        await conn.close()


@pytest.mark.skipif(not LONG, reason="one alert after the other takes minutes: HELIOGRAPH_FAULTS=long")
async def test_what_takes_everything_away(public_place: Path, tmp_path: Path, embedded: Start) -> None:
    server = embedded(public_place / "postgres", extra_settings={}, lock_timeout=5.0)
    await server.start()
    await migrate(server.owner_url, application=server.url)
    async with start_drill(server.url, server.owner_url, tmp_path) as drill:
        made, prometheus = drill.made, drill.prometheus
        api, worker = await made.api(), await made.worker()
        await worker.ready()
        await prometheus.clears(ALONE)

        # One web process of several, which hangs, and then is killed.
        another = await made.worker()
        await another.ready()
        await prometheus.until_scraped(3)
        another.send(signal.SIGSTOP)
        await prometheus.fires({"HeliographProcessGone"})
        listed = await drill.runbook_command("HeliographProcessGone", "workers", "list", "--json")
        assert len(msgspec.json.decode(listed.out)) == 2
        another.send(signal.SIGCONT)
        await prometheus.clears({"HeliographProcessGone"})
        await another.kill()
        await prometheus.fires({"HeliographProcessGone"})
        await prometheus.clears({"HeliographNoWorker", "HeliographDown"})
        another = await made.worker()
        await another.ready()
        await prometheus.clears({"HeliographProcessGone"})
        assert await another.stop() == 0

        # Workers, then everything.
        await worker.kill()
        await prometheus.fires({"HeliographNoWorker"})
        await api.kill()
        await prometheus.fires({"HeliographDown"})
        api, worker = await made.api(), await made.worker()
        await worker.ready()
        await prometheus.clears({"HeliographNoWorker", "HeliographDown"})

        async with Load(made.base_url, made.key) as load:
            await load.until_sent(20)
            # The database, and what clients see of it.
            await kill(server)
            await prometheus.fires({"HeliographDatabaseAway"})
            await server.stop()
            await prometheus.fires({"HeliographRefusals"})
            await server.start()
            await load.until_sent(len(load.ledger) + 20)
            await prometheus.clears({"HeliographDatabaseAway", "HeliographRefusals"})

            # A transaction holds balances, again and again.
            holder = asyncio.create_task(hold_balances(server.owner_url))
            await prometheus.fires({"HeliographAcceptSlow"})
            holder.cancel()
            await asyncio.gather(holder, return_exceptions=True)
            await prometheus.clears({"HeliographAcceptSlow"})

            # A receiver that fails.
            usual = made.receiver.options
            made.receiver.options = msgspec.structs.replace(usual, status=500)
            await prometheus.fires({"HeliographWebhooksFailing"})
            await drill.runbook_command("HeliographWebhooksFailing", "webhook", "list")
            made.receiver.options = usual
            await prometheus.clears({"HeliographWebhooksFailing"})

            # A supplier whose every response is an error.
            made.smsc.configure(error_mix={0x08: 1.0})
            await prometheus.fires({"HeliographCircuitOpen"})
            await drill.runbook_command("HeliographCircuitOpen", "message", "list", "--status", "failed")
            made.smsc.configure(error_mix={})
            await prometheus.clears({"HeliographCircuitOpen"})

            # A supplier that keeps throttling.
            made.smsc.configure(error_mix={0x58: 1.0})
            await until_true(drill.is_retrying)
            # For more than three minutes.
            await drill.as_owner("UPDATE queue SET claims = claims + 20 WHERE kind = 'sms' AND begun_at IS NULL")
            await prometheus.fires({"HeliographDeferred"})
            await drill.runbook_command("HeliographDeferred", "queue", "list")
            listed = await drill.runbook_command(
                "HeliographDeferred", "message", "list", "--status", "accepted", "--json"
            )
            assert msgspec.json.decode(listed.out)
            made.smsc.configure(error_mix={})
            await prometheus.clears({"HeliographDeferred"})

            # A migration step that this version does not know.
            await drill.as_owner("ALTER TABLE mails RENAME TO mails_gone")
            await prometheus.fires({"HeliographStepFailing"})
            await drill.as_owner("ALTER TABLE mails_gone RENAME TO mails")
            await prometheus.clears({"HeliographStepFailing"})

            # A worker with a different secret key, which takes no messages.
            await prometheus.clears({"HeliographCheckFailed", "HeliographCheckWarns"})
            other = await made.worker(HELIOGRAPH_SECRET_KEY="a key that is nobody else's, long enough")
            await other.ready()
            await drill.run_checks()
            await prometheus.fires({"HeliographCheckFailed"})
            said = await drill.runbook_command("HeliographCheckFailed", "doctor", "--json")
            assert "secret keys" in [one["check"] for one in msgspec.json.decode(said.out) if one["state"] == "failed"]
            assert await other.stop() == 0
            await drill.run_checks()
            await prometheus.clears({"HeliographCheckFailed"})

            # A statement that waits for somebody's lock.
            async with blocked_statement(server.owner_url):
                await prometheus.fires({"HeliographCheckWarns"})
                said = await drill.runbook_command("HeliographCheckWarns", "doctor", "--json")
                names = [one["check"] for one in msgspec.json.decode(said.out) if one["state"] == "warning"]
                assert "speed of the database" in names
            await drill.run_checks()
            await prometheus.clears({"HeliographCheckWarns"})


@pytest.mark.skipif(not LONG, reason="one alert after the other takes minutes: HELIOGRAPH_FAULTS=long")
async def test_a_standby_that_is_away_and_one_that_is_behind(
    public_place: Path, tmp_path: Path, embedded: Start
) -> None:
    server = embedded(public_place / "postgres", extra_settings=PRIMARY)
    await server.start()
    await migrate(server.owner_url, application=server.url)
    alert = {"HeliographStandbyUnread"}
    async with following(server, public_place / "standby") as standby:
        reader = {"HELIOGRAPH_READER_DATABASE_URL": standby.url}
        async with start_drill(server.url, server.owner_url, tmp_path, **reader) as drill:
            await drill.made.api()
            await (await drill.made.worker()).ready()
            await drill.prometheus.clears(alert)

            await standby.stop()
            await drill.prometheus.fires(alert)
            said = await drill.runbook_command("HeliographStandbyUnread", "doctor", "--json")
            assert "standby" in [one["check"] for one in msgspec.json.decode(said.out) if one["state"] != "ok"]
            await standby.start()
            await drill.prometheus.clears(alert)

            # A standby that replays nothing falls behind once something is written.
            await standby.ask("SELECT pg_wal_replay_pause()")
            async with Client(drill.made.base_url, drill.made.key) as client:
                await client.send("+258841000001")
            await drill.prometheus.fires(alert)
            (query,) = re.findall(r"`(SELECT pg_is_wal_replay_paused\(\))`", section("HeliographStandbyUnread"))
            assert await standby.ask(query)
            await standby.ask("SELECT pg_wal_replay_resume()")
            await drill.prometheus.clears(alert)


@pytest.mark.skipif(not LONG, reason="slow clients that hold 400 MB: HELIOGRAPH_FAULTS=long")
async def test_slow_clients_that_hold_memory(database_url: str, owner_url: str, tmp_path: Path) -> None:
    patient = {"HELIOGRAPH_BODY_DEADLINE_SECONDS": "600", "HELIOGRAPH_MAX_BODY_BYTES": "1048576"}
    async with start_drill(database_url, owner_url, tmp_path, **patient) as drill:
        made, prometheus = drill.made, drill.prometheus
        api = await made.api()
        await (await made.worker()).ready()
        await prometheus.clears(LARGE)

        size = made.settings.max_body_bytes
        head = (
            "POST /v1/sms/send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {made.key}\r\nIdempotency-Key: a key\r\nContent-Length: {size}\r\n\r\n"
        ).encode()
        writers = []
        for _ in range(400):
            # All but the last byte.
            _, writer = await asyncio.open_connection("127.0.0.1", made.port)
            writer.write(head + bytes(size - 1))
            writers.append(writer)
        await asyncio.gather(*(writer.drain() for writer in writers))
        await prometheus.fires(LARGE)
        assert "Restart the process" in section(*LARGE)
        for writer in writers:
            writer.close()
        assert await api.stop() == 0
        await made.api()
        await prometheus.clears(LARGE)


async def hold_balances(owner: str) -> None:
    """Hold every balance for most of each second."""
    conn = await asyncpg.connect(owner)
    try:
        while True:
            async with conn.transaction():
                await conn.execute("SELECT 1 FROM quotas FOR UPDATE")
                await asyncio.sleep(0.8)
    finally:
        await conn.close()


@asynccontextmanager
async def blocked_statement(owner: str) -> AsyncIterator[None]:
    """A statement that waits for a lock."""
    holder, waiter = await asyncpg.connect(owner), await asyncpg.connect(owner)
    try:
        await holder.execute("SELECT pg_advisory_lock(4711)")
        waiting = asyncio.create_task(waiter.execute("SELECT pg_advisory_lock(4711)"))
        yield
        await holder.execute("SELECT pg_advisory_unlock(4711)")
        await waiting
    finally:
        await holder.close()
        await waiter.close()
