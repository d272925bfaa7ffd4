"""The night drill: alerts are provoked for real, seen by a real Prometheus, mended by the commands of their section of
the runbook, and gone again.

The short form has those that can be provoked beside each other; the long form also those that take the database or
every process away, one after the other. A test names the alerts that neither provokes, and why.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import msgspec
import pytest

from heliograph.base.database.migrate import migrate
from tests.embedded import Start
from tests.house.project import ROOT
from tests.load import Client, Load
from tests.ports import held_port
from tests.processes import LONG, Installation, Program, installation, kill, until_true
from tests.prometheus import Prometheus, watching
from tests.standby import PRIMARY, following

RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
#: Provoked beside each other.
TOGETHER = {
    "HeliographHeld",
    "HeliographSupplierDown",
    "HeliographOldSnapshot",
    "HeliographPartitionsMissing",
    "HeliographRetentionLate",
    "HeliographBackupOld",
}
#: Before them: a supplier that is too slow cannot be away as well.
FIRST = {"HeliographQueueLate"}
#: One after the other, in the long form.
ALONE = {
    "HeliographNoWorker",
    "HeliographDown",
    "HeliographDatabaseAway",
    "HeliographRefusals",
    "HeliographAcceptSlow",
    "HeliographWebhooksFailing",
    "HeliographCircuitOpen",
    "HeliographStepFailing",
    "HeliographStandbyUnread",
}
#: Not provoked here, and why.
LEFT = {
    "HeliographLoopLag": "a loop that hangs for long enough to be seen hangs its machine as well",
    "HeliographUnknownAttempts": "is a worker that was killed, or a supplier that does not answer, after a minute:"
    " tests/faults/test_supplier_faults.py has both",
    "HeliographCallbacksWaiting": "is the backlog of a worker that is away, which HeliographNoWorker provokes",
    "HeliographMemory": "300 MB of buffers take thousands of slow clients: `make bench` watches memory",
}
PASSPHRASE = "a passphrase of the drill"

pytestmark = [pytest.mark.lasts(90), pytest.mark.timeout(900)]


def section(alert: str) -> str:
    """The runbook on an alert."""
    return RUNBOOK.split(f"\n## {alert}\n")[1].split("\n## ")[0]


def test_every_alert_is_drilled_or_has_a_reason() -> None:
    alerts = set(re.findall(r"- alert: (\w+)", (ROOT / "deploy" / "prometheus" / "heliograph.rules.yml").read_text()))
    assert alerts == FIRST | TOGETHER | ALONE | set(LEFT)


class Drill:
    """An installation that is watched, and somebody at its command line."""

    def __init__(self, made: Installation, prometheus: Prometheus, owner: str) -> None:
        self.made, self.prometheus, self.owner = made, prometheus, owner
        self._commands = 0

    async def command(self, alert: str, *words: str) -> Program:
        """Run a command that the runbook names for this alert."""
        named = f"heliograph {' '.join(words[: 1 if words[0] in ('migrate', 'doctor') else 2])}"
        assert named in section(alert), f"the runbook on {alert} does not name `{named}`"
        return await self.operator(*words)

    async def operator(self, *words: str) -> Program:
        """Run a command."""
        self._commands += 1
        program = await Program.start(
            *words,
            log=self.made.place / f"command-{self._commands}",
            environment=self.made.environment
            | {"HELIOGRAPH_OWNER_DATABASE_URL": self.owner, "HELIOGRAPH_BACKUP_PASSPHRASE": PASSPHRASE},
            forked=True,
        )
        # Doctor ends with 1 if anything is wrong, as it is here.
        assert await program.ended() in ((0, 1) if words[0] == "doctor" else (0,)), program.err
        return program

    async def as_owner(self, statement: str) -> None:
        conn = await asyncpg.connect(self.owner)
        try:
            await conn.execute(statement)
        finally:
            await conn.close()


@asynccontextmanager
async def drilled(url: str, owner: str, place: Path, **settings: str) -> AsyncIterator[Drill]:
    """An installation whose metrics are scraped; nothing fires yet."""
    (place / "logs").mkdir()
    with held_port() as first:
        listen = {"HELIOGRAPH_METRICS_LISTEN": f"127.0.0.1:{first}", "HELIOGRAPH_LOG_LEVEL": "info"}
        async with (
            installation(url, place / "logs", **listen, **settings) as made,
            watching(place / "prometheus", range(first, first + 6)) as prometheus,
        ):
            yield Drill(made, prometheus, owner)


async def test_what_can_be_wrong_at_once(database_url: str, owner_url: str, tmp_path: Path) -> None:
    async with drilled(database_url, owner_url, tmp_path) as drill:
        made, prometheus = drill.made, drill.prometheus
        await made.api()
        worker = await made.worker()
        await worker.ready()
        backups = ("backup", "take", "--to", str(tmp_path / "backups"))
        await drill.operator(*backups)
        await prometheus.rests(FIRST | TOGETHER | ALONE | set(LEFT))

        # More is sent than goes through.
        async with Load(made.base_url, made.key, pause=0.5):
            await drill.operator("supplier", "set", "main", "rate=1")
            await prometheus.fires(FIRST)
            await drill.command("HeliographQueueLate", "queue", "list")
            await drill.command("HeliographQueueLate", "supplier", "set", "main", "rate=1000")
            await prometheus.rests(FIRST)

        # Much happens at once.
        await drill.operator("hold", "add", "--kind", "webhook", "--reason", "the drill")
        await made.smsc.stop()
        async with Client(made.base_url, made.key) as client:
            id = await client.send("+258841000001")
        await drill.as_owner("UPDATE backups SET taken_at = taken_at - interval '27 hours'")
        held = await holding_retention(drill, owner_url)
        await drill.as_owner(DROPPED)
        forgotten = await asyncpg.connect(database_url, server_settings={"application_name": "forgotten report"})
        await forgotten.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM messages")
        await prometheus.fires(TOGETHER)

        # Each by its page.
        listed = await drill.command("HeliographHeld", "hold", "list", "--json")
        (hold,) = msgspec.json.decode(listed.out)
        assert hold["reason"] == "the drill"
        await drill.command("HeliographHeld", "hold", "release", hold["id"])
        shown = await drill.command("HeliographSupplierDown", "supplier", "show", "main")
        assert "main" in shown.out
        await made.smsc.start()
        found = await ended_snapshot(database_url, section("HeliographOldSnapshot"))
        assert found == "forgotten report"
        await drill.command("HeliographPartitionsMissing", "migrate")
        await held.close()
        await drill.command("HeliographBackupOld", *backups)
        await prometheus.rests(TOGETHER)
        async with Client(made.base_url, made.key) as client:

            async def delivered() -> bool:
                _, said = await client.ask("GET", f"/sms/messages/{id}")
                return bool(said["message"]["status"] == "delivered")

            await until_true(delivered)
        await forgotten.close()


async def holding_retention(drill: Drill, owner: str) -> asyncpg.Connection:
    """Retention was to run two days ago, and somebody keeps it from running as long as this connection lives."""
    held = await asyncpg.connect(owner)
    while True:
        await drill.as_owner("UPDATE timers SET next_at = now() - interval '2 days' WHERE name = 'forget'")
        await held.execute("BEGIN")
        if await held.fetchval(
            "SELECT next_at < now() - interval '1 day' FROM timers WHERE name = 'forget' FOR UPDATE"
        ):
            return held
        # A worker was quicker.
        await held.execute("ROLLBACK")


DROPPED = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT relname FROM pg_class
                 WHERE relkind = 'r' AND relname ~ '^send_keys_2'
                   AND relname > 'send_keys_' || to_char(now() AT TIME ZONE 'UTC', 'YYYY_MM_DD')
    LOOP EXECUTE format('DROP TABLE %I', name); END LOOP;
END $$
"""


async def ended_snapshot(url: str, page: str) -> str:
    """Who had the oldest transaction, by the query of the runbook; it is ended by the runbook's, too."""
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
    async with drilled(server.url, server.owner_url, tmp_path) as drill:
        made, prometheus = drill.made, drill.prometheus
        api, worker = await made.api(), await made.worker()
        await worker.ready()
        await prometheus.rests(ALONE)

        # Workers, then everything.
        await worker.kill()
        await prometheus.fires({"HeliographNoWorker"})
        await api.kill()
        await prometheus.fires({"HeliographDown"})
        api, worker = await made.api(), await made.worker()
        await worker.ready()
        await prometheus.rests({"HeliographNoWorker", "HeliographDown"})

        async with Load(made.base_url, made.key) as load:
            await load.reaches(20)
            # The database, and what clients hear of it.
            await kill(server)
            await prometheus.fires({"HeliographDatabaseAway"})
            await server.stop()
            await prometheus.fires({"HeliographRefusals"})
            await server.start()
            await load.reaches(len(load.ledger) + 20)
            await prometheus.rests({"HeliographDatabaseAway", "HeliographRefusals"})

            # Somebody holds a balance, again and again.
            holder = asyncio.create_task(holding(server.owner_url))
            await prometheus.fires({"HeliographAcceptSlow"})
            holder.cancel()
            await asyncio.gather(holder, return_exceptions=True)
            await prometheus.rests({"HeliographAcceptSlow"})

            # A receiver that fails.
            usual = made.receiver.options
            made.receiver.options = msgspec.structs.replace(usual, status=500)
            await prometheus.fires({"HeliographWebhooksFailing"})
            await drill.command("HeliographWebhooksFailing", "webhook", "list")
            made.receiver.options = usual
            await prometheus.rests({"HeliographWebhooksFailing"})

            # A supplier whose every answer is an error.
            made.smsc.configure(error_mix={0x08: 1.0})
            await prometheus.fires({"HeliographCircuitOpen"})
            await drill.command("HeliographCircuitOpen", "message", "list", "--status", "failed")
            made.smsc.configure(error_mix={})
            await prometheus.rests({"HeliographCircuitOpen"})

            # A step that this version cannot do.
            await drill.as_owner("ALTER TABLE mails RENAME TO mails_gone")
            await prometheus.fires({"HeliographStepFailing"})
            await drill.as_owner("ALTER TABLE mails_gone RENAME TO mails")
            await prometheus.rests({"HeliographStepFailing"})


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
        async with drilled(server.url, server.owner_url, tmp_path, **reader) as drill:
            await drill.made.api()
            await (await drill.made.worker()).ready()
            await drill.prometheus.rests(alert)

            await standby.stop()
            await drill.prometheus.fires(alert)
            said = await drill.command("HeliographStandbyUnread", "doctor", "--json")
            assert "standby" in [one["check"] for one in msgspec.json.decode(said.out) if one["state"] != "ok"]
            await standby.start()
            await drill.prometheus.rests(alert)

            # What replays nothing is behind once something is written.
            await standby.ask("SELECT pg_wal_replay_pause()")
            async with Client(drill.made.base_url, drill.made.key) as client:
                await client.send("+258841000001")
            await drill.prometheus.fires(alert)
            (query,) = re.findall(r"`(SELECT pg_is_wal_replay_paused\(\))`", section("HeliographStandbyUnread"))
            assert await standby.ask(query)
            await standby.ask("SELECT pg_wal_replay_resume()")
            await drill.prometheus.rests(alert)


async def holding(owner: str) -> None:
    """Hold every balance for most of each second."""
    conn = await asyncpg.connect(owner)
    try:
        while True:
            async with conn.transaction():
                await conn.execute("SELECT 1 FROM quotas FOR UPDATE")
                await asyncio.sleep(0.8)
    finally:
        await conn.close()
