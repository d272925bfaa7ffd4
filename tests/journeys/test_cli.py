"""The command line from an operator's point of view: real processes, a real database, output and exit status."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import msgspec
import pytest

from heliograph.accounts import organizations
from heliograph.accounts.api_keys import authentication
from heliograph.base.actor import Actor
from heliograph.base.crypto import hash_secret
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import DEFAULT_SECRET_KEY, Settings
from heliograph.sms.reports import diagnosis, keys, receipts, words
from heliograph.suppliers.contract import Receipt, ReceiptState
from heliograph.webhooks import endpoints
from tests import forks
from tests.database import Cluster
from tests.house.project import ROOT
from tests.rules.factories import TO, organization, receipt, sent

SECRET_KEY = "a secret key for these tests only, and long"
NOWHERE = "postgresql://heliograph:geheim@127.0.0.1:1/heliograph"


class Done(msgspec.Struct):
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its stdout as JSON."""
        assert self.status == 0, self.err
        return msgspec.json.decode(self.out)


class Cli:
    """Runs `heliograph` in an environment of its own."""

    def __init__(self, **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HELIOGRAPH_")}
        # A home directory without data: a data directory on this machine must not be found.
        self.environment = kept | {"HELIOGRAPH_SECRET_KEY": SECRET_KEY, "XDG_DATA_HOME": "/nonexistent"} | environment

    async def __call__(self, *arguments: str, stdin: str = "", **environment: str) -> Done:
        process = await self._start(arguments, environment, stderr=asyncio.subprocess.PIPE)
        out, err = await process.communicate(stdin.encode())
        assert process.returncode is not None
        assert b"Traceback" not in err, err.decode()
        return Done(process.returncode, out.decode(), err.decode())

    @contextlib.asynccontextmanager
    async def running(self, *arguments: str, err: Path | None = None, **environment: str) -> AsyncIterator[Life]:
        """A command that keeps running; yields once it has printed its first line. Ended as if by Ctrl-C,
        gracefully."""
        with _appending(err or Path(os.devnull)) as sink:
            process = await self._start((*arguments, "--json"), environment, stderr=sink)
        try:
            assert process.stdout is not None
            async with asyncio.timeout(120):
                line = await process.stdout.readline()
            assert line, f"{arguments} ended with {await process.wait()}"
            yield Life(process, msgspec.json.decode(line))
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            try:
                assert await asyncio.wait_for(process.wait(), 120) == 0
            except TimeoutError:
                process.kill()
                await process.wait()
                raise

    async def _start(self, arguments: tuple[str, ...], environment: dict[str, str], *, stderr: Any) -> forks.Forked:
        return await forks.start(
            *arguments,
            environment=self.environment | environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )


class Life(msgspec.Struct):
    """A running command, and the first line it printed."""

    process: forks.Forked
    first: dict[str, Any]


@pytest.fixture
def cli(database_url: str) -> Cli:
    return Cli(HELIOGRAPH_DATABASE_URL=database_url)


async def test_an_organization_from_nothing(cli: Cli) -> None:
    acme = (await cli("org", "create", "Acme", "--country", "any", "--grant", "100", "--json")).data
    assert (acme["name"], acme["state"]) == ("Acme", "active")
    assert re.fullmatch(r"[0-9-]{10}T[0-9:.]{12}Z", acme["created_at"])

    key, sender, granted = await asyncio.gather(
        cli(
            "key",
            "create",
            "shop",
            "--profile",
            "full_access",
            "--expires",
            "30d",
            "--allow-ip",
            "10.0.0.0/8",
            "--json",
        ),
        cli("sender", "request", "ACME", "--approve", "--json"),
        cli("quota", "grant", "-40", "--reason", "too many", "--json"),
    )
    assert key.data["secret"].startswith("hg_live_")
    assert key.data["allowed_ips"] == ["10.0.0.0/8"]
    assert key.data["expires_at"] > key.data["created_at"]
    assert "not shown again" in key.err
    assert (sender.data["status"], sender.data["is_default"]) == ("approved", True)
    assert (granted.data["total"], granted.data["remaining"]) == (60, 60)

    listed, shown, revoked, suspended = await asyncio.gather(
        cli("key", "list"),
        cli("org", "show", acme["id"], "--json"),
        cli("key", "revoke", key.data["id"], "--json"),
        cli("org", "suspend", "Acme", "--json"),
    )
    assert "shop" in listed.out
    assert key.data["secret"] not in listed.out
    assert shown.data["quota"]["remaining"] == 60
    assert shown.data["requests"] == {"now": [], "day": {"count": 0, "refused": 0, "busiest": 0}}
    assert revoked.data["status"] == "revoked"
    other = (await cli("key", "create", "other", "--json")).data["id"]
    assert (await cli("key", "suspend", other, "--json")).data["status"] == "suspended"
    assert (await cli("key", "resume", other, "--json")).data["status"] == "active"
    refused = await cli("key", "resume", key.data["id"])
    assert (refused.status, "revoked" in refused.err) == (1, True)
    assert suspended.data["state"] == "suspended"
    assert (await cli("org", "resume", "Acme", "--json")).data["state"] == "active"


async def test_an_organization_has_rate_limits_of_its_own(cli: Cli, pool: Pool) -> None:
    acme = (await cli("org", "create", "Acme", "--country", "any", "--json")).data

    def rows(**own: int) -> list[dict[str, object]]:
        usual = {"sms_send": 10_000, "campaigns": 60, "mutations": 6_000, "reads": 3_000}
        return [
            {"bucket": bucket, "limit": own.get(bucket, limit), "own": bucket in own} for bucket, limit in usual.items()
        ]

    assert (await cli("org", "rate-limits", "Acme", "--json")).data == rows()
    changed = await cli("org", "rate-limits", acme["id"], "--sms-send", "30000", "--reads", "5", "--json")
    assert changed.data == rows(sms_send=30_000, reads=5)
    table, back = (
        await cli("org", "rate-limits", "acme"),
        await cli("org", "rate-limits", "Acme", "--reads", "0", "--json"),
    )
    assert "30000" in table.out
    assert back.data == rows(sms_send=30_000)
    refused = await cli("org", "rate-limits", "Acme", "--campaigns", "1000001", "--reads", "7")
    assert (refused.status, "--campaigns must be from 1 to 1000000" in refused.err) == (2, True), refused.err
    kept = await pool.fetchrow("SELECT rate_sms_send, rate_campaigns, rate_reads FROM organizations")
    assert tuple(kept) == (30_000, None, None)
    told = await pool.fetch("SELECT who, after FROM audit_log WHERE action = 'organization.configured' ORDER BY id")
    assert [tuple(row) for row in told] == [
        ("cli", '{"rate_sms_send":30000,"rate_reads":5}'),
        ("cli", '{"rate_reads":null}'),
    ]


async def test_a_key_is_rotated(cli: Cli, pool: Pool) -> None:
    await cli("org", "create", "Acme", "--country", "any", "--json")
    old = (await cli("key", "create", "shop", "--scope", "sms:send", "--allow-ip", "10.0.0.0/8", "--json")).data
    rotated = await cli("key", "rotate", old["id"], "--keep-old", "90m", "--json")
    new = rotated.data
    assert "not shown again" in rotated.err
    assert new["id"] != old["id"]
    same = ("name", "scopes", "allowed_ips", "mode", "profile", "expires_at")
    assert [new[name] for name in same] == [old[name] for name in same]
    # Both work, the old one until the chosen time.
    async with pool.acquire() as conn:
        known = await authentication.authenticate_many(conn, [hash_secret(one["secret"]) for one in (old, new)])
        assert [one is not None and str(one.actor.key_id) for one in known] == [old["id"], new["id"]]
        left = await conn.fetchval("SELECT expires_at - now() FROM api_keys WHERE id = $1", UUID(old["id"]))
    assert timedelta(minutes=60) < left <= timedelta(minutes=90)
    listed = {one["id"]: one for one in (await cli("key", "list", "--json")).data}
    assert listed[old["id"]]["expires_at"] == new["old_key_ends_at"]
    assert {one["status"] for one in listed.values()} == {"active"}

    again, endless, nothing, unclear = await asyncio.gather(
        cli("key", "rotate", old["id"]),
        cli("key", "rotate", new["id"], "--keep-old", "999d"),
        cli("key", "rotate", new["id"], "--keep-old", "0h"),
        cli("key", "rotate", new["id"], "--keep-old", "soon"),
    )
    assert (again.status, endless.status, nothing.status, unclear.status) == (1, 2, 2, 2)
    assert new["id"] in again.err
    assert endless.err == nothing.err == "heliograph: --keep-old must be more than 0 and at most 30 days\n"
    assert "90m, 24h or 7d" in unclear.err
    assert len((await cli("key", "list", "--json")).data) == 2, "a refusal makes no key"
    await asyncio.gather(*(cli("key", "create", str(n), "--mode", "test") for n in range(3)))
    full = await cli("key", "create", "sixth")
    assert (full.status, "(limit: 5, active: live=2, test=3)" in full.err) == (1, True), full.err


async def test_plans_states_and_adjustments(cli: Cli) -> None:
    await cli("org", "create", "Acme", "--country", "any")
    planned = await cli(
        "org", "plan", "Acme", "business", "--quota", "500", "--since", "2026-01-31T00:00:00Z", "--json"
    )
    assert planned.data["plan"] == "business"
    assert planned.data["quota"]["remaining"] == 500
    assert planned.data["quota"]["resets_at"] == planned.data["period_end"] > planned.data["period_start"]
    adjusted = await cli("quota", "adjust", "-1", "--reason", "entered twice", "--json")
    assert adjusted.data["remaining"] == 499
    due = await cli("org", "state", "Acme", "past_due", "--json")
    assert due.data["state"] == "past_due"
    ended = await cli("org", "plan", "Acme", "--end", "--json")
    assert (ended.data["plan"], ended.data["quota"]["resets_at"]) == (None, None)
    refused, unnamed, unknown = await asyncio.gather(
        cli("quota", "adjust", "-500", "--reason", "all"),
        cli("org", "plan", "Acme"),
        cli("org", "state", "Acme", "odd"),
    )
    assert (refused.status, unnamed.status, unknown.status) == (1, 2, 2)


async def test_sender_ids_are_asked_for_and_decided_on(cli: Cli) -> None:
    await cli("org", "create", "Acme", "--country", "any")
    asked = await cli("sender", "request", "Acme Lda", "--json")
    assert asked.data["status"] == "pending"
    rejected = await cli("sender", "reject", "acme lda", "--reason", "whose name is it", "--json")
    assert (rejected.data["status"], rejected.data["rejection_reason"]) == ("rejected", "whose name is it")
    assert (await cli("sender", "approve", asked.data["id"], "--json")).data["status"] == "approved"
    again, listed, unknown = await asyncio.gather(
        cli("sender", "request", "ACME LDA"), cli("sender", "list", "--json"), cli("sender", "approve", "other")
    )
    assert again.status == 1
    assert "already exists" in again.err
    assert [one["value"] for one in listed.data] == ["Acme Lda"]
    assert (unknown.status, unknown.out) == (1, "")
    await cli("sender", "request", "OTHER", "--approve")
    assert (await cli("sender", "default", "other", "--json")).data["is_default"] is True
    suspended = await cli("sender", "suspend", "OTHER", "--reason", "complaints", "--json")
    assert (suspended.data["status"], suspended.data["is_default"]) == ("suspended", False)
    refused = await cli("sender", "default", "OTHER")
    assert (refused.status, "not approved" in refused.err) == (1, True)


async def test_an_organization_must_be_named_when_there_are_several(cli: Cli) -> None:
    none = await cli("key", "create")
    await asyncio.gather(
        cli("org", "create", "Acme", "--country", "any"), cli("org", "create", "Beta", "--country", "any")
    )
    several, wrong, listed = await asyncio.gather(
        cli("key", "create"), cli("key", "create", "--org", "Bets"), cli("org", "list")
    )
    assert (none.status, several.status, wrong.status) == (1, 1, 1)
    assert "several organizations" in several.err
    for one in (several, wrong):
        assert "'Acme', 'Beta'" in one.err
    assert len(listed.out.splitlines()) == 3
    nowhere = await cli("org", "create", "Gamma")
    assert (nowhere.status, "--home-country" in nowhere.err) == (2, True)
    again = await cli("org", "create", "ACME", "--country", "any")
    assert (again.status, "there is already an organization named 'ACME'" in again.err) == (1, True)
    renamed = await cli("org", "rename", "acme", "Acme Moçambique", "--json")
    assert renamed.data["name"] == "Acme Moçambique"
    assert (await cli("org", "show", "acme moçambique", "--json")).data["id"] == renamed.data["id"]


async def test_lists_are_of_all_organizations_unless_one_is_named(cli: Cli) -> None:
    await asyncio.gather(
        cli("org", "create", "Acme", "--country", "any", "--grant", "10"),
        cli("org", "create", "Beta", "--country", "any"),
    )
    key, _, _ = await asyncio.gather(
        cli("key", "create", "--org", "Acme", "--json"),
        cli("key", "create", "--org", "Beta"),
        cli("sender", "request", "ACME", "--org", "Acme"),
    )
    await asyncio.gather(
        cli("sender", "request", "BETA", "--org", "Beta", "--approve"), cli("key", "revoke", key.data["id"])
    )
    keys, active, pending, of_beta, campaigns, wrong = await asyncio.gather(
        cli("key", "list", "--json"),
        cli("key", "list", "--no-revoked", "--json"),
        cli("sender", "list", "--status", "pending", "--json"),
        cli("sender", "list", "--org", "beta", "--json"),
        cli("campaign", "list", "--json"),
        cli("sender", "list", "--status", "new"),
    )
    assert {one["organization"] for one in keys.data} == {"Acme", "Beta"}
    assert [one["organization"] for one in active.data] == ["Beta"]
    assert [(one["organization"], one["value"]) for one in pending.data] == [("Acme", "ACME")]
    assert [(one["organization"], one["value"]) for one in of_beta.data] == [("Beta", "BETA")]
    assert campaigns.data == []
    assert (wrong.status, "pending, approved" in wrong.err) == (2, True)


async def test_a_supplier_comes_and_goes(cli: Cli) -> None:
    smpp = ("supplier", "add", "smpp")
    common = ("--host", "127.0.0.1", "--no-tls", "--system-id", "acme")
    first, second, third = await asyncio.gather(
        cli(*smpp, "one", *common, "--password", "geheim1", "--prefix", "258", "--sessions", "2", "--json"),
        cli(*smpp, "two", *common, "--json", HELIOGRAPH_SUPPLIER_PASSWORD="geheim2"),
        cli(
            *(*smpp, "three", *common, "--dlr-id-base", "hex", "--statuses", "0x401=R", "--statuses", "0x402=P"),
            *("--tls-verify", "no", "--set", "short-code=6,1", "--json"),
            stdin="geheim3\n",
        ),
    )
    for done in (first, second, third):
        assert done.data["state"] == "active"
        assert "geheim" not in done.out + done.err
        assert "secret" not in done.data
    assert (first.data["prefixes"], first.data["sessions"]) == (["258"], 2)
    assert third.data["settings"]["dlr_id_base"] == "hex"
    assert third.data["settings"]["short_code"] == [6, 1]
    assert third.data["settings"]["statuses"] == {"0x401": "R", "0x402": "P"}
    assert third.data["settings"]["tls_verify"] is False

    for nameless in ("", " ", "a\nb"):
        done = await cli(*smpp, nameless, *common, "--password", "x")
        assert (done.status, done.out, "NAME must" in done.err) == (2, "", True), nameless
    twice, wrong, badly, unknown, none, paused, removed = await asyncio.gather(
        cli(*smpp, "one", *common, "--password", "x"),
        cli(*smpp, "four", *common, "--password", "x", "--set", "window=many"),
        cli(*smpp, "four", *common, "--password", "x", "--enquire-seconds", "often"),
        cli(*smpp, "four", *common, "--password", "x", "--set", "colour=red"),
        cli(*smpp, "four", *common),
        cli("supplier", "pause", "one", "--json"),
        cli("supplier", "remove", "two", "--yes", "--json"),
    )
    assert (twice.status, wrong.status, unknown.status, none.status) == (1, 2, 2, 2)
    assert "window" in wrong.err
    assert (badly.status, "enquire_seconds" in badly.err) == (2, True)
    assert "colour" in unknown.err
    assert paused.data["state"] == "paused"
    assert removed.data["state"] == "removed"
    listed, resumed, gone, options = await asyncio.gather(
        cli("supplier", "list", "--json"),
        cli("supplier", "resume", first.data["id"], "--json"),
        cli("supplier", "show", "two"),
        cli("supplier", "options", "--json"),
    )
    assert {one["name"]: (one["bound"], one["leased"]) for one in listed.data} == {"one": (0, 0), "three": (0, 0)}
    assert resumed.data["state"] == "active"
    assert gone.status == 1
    assert {"setting": "short_code", "default": "3,0", "meaning": "TON and NPI of senders of at most 8 digits"} in (
        options.data
    )


async def test_a_supplier_is_changed_and_the_difference_shown(cli: Cli) -> None:
    add = ("supplier", "add", "smpp", "main", "--host", "127.0.0.1", "--no-tls", "--system-id", "acme")
    first = await cli(*add, "--password", "geheim1", "--set", "statuses.0x401=R", "--json")
    changed = await cli(
        *("supplier", "set", "main", "rate=50", "prefix=258,+244", "statuses.0x401=", "--password", "geheim2", "--json")
    )
    assert changed.data["id"] == first.data["id"]
    assert {one["setting"]: (one["before"], one["after"]) for one in changed.data["changes"]} == {
        "prefixes": ([], ["258", "244"]),
        "submits_per_second": (0.0, 50.0),
        "statuses": ({"0x401": "R"}, {}),
        "password": ("(hidden)", "a new one"),
    }
    again = await cli("supplier", "set", "main", "rate=50", "--ask-password", stdin="geheim2\n")
    assert (again.status, again.out, "is unchanged" in again.err) == (0, "", True)
    table, nothing, unknown, wrong = await asyncio.gather(
        cli("supplier", "set", "main", "rate=60", "--ask-password", stdin="geheim3\n"),
        cli("supplier", "set", "main"),
        cli("supplier", "set", "nobody", "rate=1"),
        cli("supplier", "set", "main", "window=0"),
    )
    blank, nameless = await asyncio.gather(
        cli("supplier", "set", "main", "--password", ""), cli("supplier", "set", "main", "name= ")
    )
    assert (blank.status, "needs its password" in blank.err) == (2, True)
    assert (nameless.status, "`name` must" in nameless.err) == (2, True)
    kept = await cli("supplier", "set", "main", "--ask-password", stdin="geheim3\n")
    assert "is unchanged" in kept.err
    assert [line.split()[0] for line in table.out.splitlines()[-2:]] == ["submits_per_second", "password"]
    assert (nothing.status, unknown.status, wrong.status, "window" in wrong.err) == (2, 1, 2, True)
    for done in (changed, again, table):
        assert "geheim" not in done.out + done.err


async def test_doctor_says_which_setting_cures_receipts_that_fit_nothing(cli: Cli, pool: Pool) -> None:
    added = await cli(
        *("supplier", "add", "smpp", "main", "--host", "127.0.0.1", "--no-tls", "--system-id", "a", "--password", "p"),
        "--json",
    )
    id = UUID(added.data["id"])
    await sent(pool, await organization(pool), id, "33e95179")
    async with pool.acquire() as conn, conn.transaction():
        await receipts.store(conn, [keys.ReceivedReceipt(id, receipt("870928761"))], policies={})
        counter = words.Words()
        counter.add(id, Receipt(("1",), ReceiptState.UNKNOWN, TO[1:], "", b"", unknown_word="XYZZY"))
        await counter.store(conn)
    await pool.execute("UPDATE receipts SET received_at = now() - interval '10 seconds'")
    done = await cli("doctor", "--url", "http://127.0.0.1:1", "--json")
    cure, unknown = [one for one in msgspec.json.decode(done.out) if one["check"] == "receipts of main"]
    assert (cure["state"], "resp_id_base=hex" in cure["detail"]) == ("failed", True)
    assert cure["remedy"] == "`heliograph supplier set main resp_id_base=hex`"
    assert (unknown["state"], "XYZZY (1)" in unknown["detail"]) == ("warning", True)
    assert (await cli("supplier", "show", "main", "--json")).data["unknown_words"] == {"XYZZY": 1}
    # Doctor's suggestion works as printed, and the words are gone once they are explained.
    assert (await cli(*cure["remedy"].strip("`").split()[1:], "final_states.XYZZY=undelivered")).status == 0
    async with pool.acquire() as conn:
        assert (await words.unknown_states(conn), await diagnosis.advise(conn)) == ({}, [])


async def test_a_simulator_is_told_from_suppliers(cli: Cli) -> None:
    smpp = ("supplier", "add", "smpp")
    common = ("--host", "127.0.0.1", "--no-tls", "--system-id", "acme", "--password", "geheim", "--json")
    pretends = await cli(*smpp, "pretends", *common, "--simulator")
    assert pretends.data["live"] == "simulated"
    real = await cli(*smpp, "real", *common)
    assert real.data["live"] == "sent"
    meant = await cli("supplier", "set", "real", "simulated=true", "--json")
    assert (meant.data["live"], meant.data["changes"][0]["setting"]) == ("simulated", "simulated")
    assert (await cli("supplier", "set", "real", "simulated=false", "--json")).data["live"] == "sent"
    listed, doctor = await asyncio.gather(
        cli("supplier", "list", "--json"), cli("doctor", "--url", "http://127.0.0.1:1", "--json")
    )
    assert {one["name"]: one["live"] for one in listed.data} == {"pretends": "none", "real": "sent"}
    (check,) = [one for one in msgspec.json.decode(doctor.out) if one["check"] == "supplier pretends"]
    assert (check["state"], "simulator" in check["detail"]) == ("ok", True)


async def test_migrations(empty_database_url: str) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=empty_database_url)
    pending, early, worker = await asyncio.gather(
        cli("migrate", "--check", "--json"), cli("org", "list"), cli("worker", HELIOGRAPH_LOG_LEVEL="error")
    )
    assert pending.status == 1
    assert "0001_schema.sql" in msgspec.json.decode(pending.out)["pending"]
    assert (early.status, worker.status) == (3, 3)
    assert "heliograph migrate" in early.err
    assert "heliograph migrate" in worker.err
    empty = await cli("migrate", "--plan", "--json")
    assert empty.data["pending"] == msgspec.json.decode(pending.out)["pending"]
    assert empty.data["locks"] == []
    applied = await cli("migrate", "--json")
    assert "0001_schema.sql" in applied.data["applied"]
    again, check, plan = await asyncio.gather(
        cli("migrate", "--json"), cli("migrate", "--check"), cli("migrate", "--plan")
    )
    assert (plan.status, plan.out) == (0, "")
    assert "Nothing is pending" in plan.err
    assert again.data == {"applied": []}
    assert (check.status, check.out) == (0, "")
    conn = await asyncpg.connect(empty_database_url)
    await conn.execute("INSERT INTO schema_migrations VALUES ('9999_later.sql', 'x', 1)")
    await conn.close()
    for how in ((), ("--check",), ("--plan",)):
        older = await cli("migrate", *how)
        assert (older.status, older.out) == (0, "")
        assert "migrated by a later version (9999_later.sql)" in older.err


async def test_a_role_that_was_granted_nothing_is_told_who_grants(
    database_url: str, database_server: Cluster, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    """As after migrating without the application's URL."""
    if database_server.url == database_server.owner_url:
        pytest.skip("HELIOGRAPH_TEST_DATABASE_URL names one role, which owns the tables")
    await as_owner(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {urlsplit(database_url).username}")
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    for one in await asyncio.gather(
        cli("api"), cli("worker"), cli("doctor"), cli("migrate", "--check"), cli("org", "list")
    ):
        assert (one.status, one.out) == (3, "")
        assert "permission denied for table" in one.err
        assert "HELIOGRAPH_OWNER_DATABASE_URL, which grants" in one.err
        assert "Traceback" not in one.err


async def test_a_role_that_may_not_migrate_is_told_which_setting_to_give(
    database_url: str, database_server: Cluster, as_owner: Callable[[str], Awaitable[None]], tmp_path: Path
) -> None:
    if database_server.url == database_server.owner_url:
        pytest.skip("HELIOGRAPH_TEST_DATABASE_URL names one role, which owns the tables")
    await as_owner("DELETE FROM schema_migrations WHERE name LIKE '%/accept.sql'")
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    for one in await asyncio.gather(cli("migrate"), cli("up", "--port", "0", "--data-dir", str(tmp_path / "data"))):
        assert (one.status, one.out) == (1, "")
        assert "the database cannot be migrated: permission denied for schema public" in one.err
        assert "give the URL of the role that owns the tables in HELIOGRAPH_OWNER_DATABASE_URL" in one.err
    given = await cli("migrate", HELIOGRAPH_OWNER_DATABASE_URL=database_url)
    assert (given.status, given.out) == (1, "")
    assert "the role of HELIOGRAPH_OWNER_DATABASE_URL must own the database and its tables" in given.err


async def test_a_database_of_before_the_schema_was_made_anew_is_refused(
    database_url: str, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    """Every command that finds it prints the same sentence, and ends with a status after which migrating is not
    retried."""
    unit = (ROOT / "deploy" / "systemd" / "heliograph-migrate.service").read_text()
    assert "RestartPreventExitStatus=1 2\n" in unit
    await as_owner("DELETE FROM schema_migrations WHERE name = '0001_schema.sql'")
    await as_owner("INSERT INTO schema_migrations VALUES ('0001_foundation.sql', 'x', 1)")
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    with tempfile.TemporaryDirectory() as place:
        ended = await asyncio.gather(
            cli("migrate"),
            cli("migrate", "--check"),
            cli("api"),
            cli("worker"),
            cli("up", "--port", "0", "--data-dir", place),
        )
    for one in ended:
        assert (one.status, one.out) == (1, "")
        assert "cannot be upgraded" in one.err
        assert "Traceback" not in one.err
    doctor = msgspec.json.decode((await cli("doctor", "--url", "http://127.0.0.1:1", "--json")).out)
    (check,) = [check for check in doctor if check["check"] == "migrations"]
    assert (check["state"], "cannot be upgraded" in check["remedy"]) == ("failed", True)


@pytest.mark.parametrize(
    ("arguments", "environment", "status", "told"),
    [
        (("org", "list"), {}, 2, "HELIOGRAPH_DATABASE_URL"),
        (("org", "list"), {"HELIOGRAPH_DATABASE_URL": NOWHERE}, 3, "cannot be reached: Connection refused"),
        (("org", "list"), {"HELIOGRAPH_DATABASE_POOL": "many"}, 2, "HELIOGRAPH_DATABASE_POOL"),
        (("org", "list", "--data-dir", "/nonexistent"), {}, 2, "heliograph up"),
        (("org", "list"), {"HELIOGRAPH_TEXT_RETENTION_DAYS": "0"}, 2, "HELIOGRAPH_TEXT_RETENTION_DAYS must be 1"),
        (("key", "create", "--expires", "tomorrow"), {}, 2, "2027-01-31"),
        (("send", "--to", "841234567", "--message", "x", "--key", "k"), {}, 2, "must begin with +"),
        (("simulate", "smsc", "--error", "8"), {}, 2, "KEY=VALUE"),
        (
            ("send", "--to", "+258840000000", "--message", "x", "--key", "k", "--url", "http://127.0.0.1:1"),
            {},
            3,
            "no answer",
        ),
        (("worker",), {"HELIOGRAPH_DATABASE_URL": NOWHERE, "HELIOGRAPH_SECRET_KEY": ""}, 2, "openssl rand"),
        (
            ("api",),
            {"HELIOGRAPH_DATABASE_URL": NOWHERE, "HELIOGRAPH_SECRET_KEY": DEFAULT_SECRET_KEY},
            2,
            "openssl rand",
        ),
        (("api",), {"HELIOGRAPH_DATABASE_URL": NOWHERE, "HELIOGRAPH_LOG_LEVEL": "loud"}, 2, "HELIOGRAPH_LOG_LEVEL"),
    ],
)
async def test_an_error_is_a_sentence(
    arguments: tuple[str, ...], environment: dict[str, str], status: int, told: str
) -> None:
    done = await Cli()(*arguments, **environment)
    assert (done.status, done.out) == (status, "")
    assert told in done.err
    assert "geheim" not in done.err


@pytest.mark.usefixtures("partitions_ahead")
async def test_a_message_all_the_way(cli: Cli, pool: Pool, tmp_path: Path, make_endpoint: Callable[..., Any]) -> None:
    """Every long-running command at once, and the commands that show what happened."""
    await cli("org", "create", "Acme", "--country", "any", "--grant", "10")
    key, sender = await asyncio.gather(
        cli("key", "create", "--profile", "full_access", "--json"), cli("sender", "request", "ACME", "--approve")
    )
    assert sender.status == 0
    secret = key.data["secret"]
    fast = {
        "HELIOGRAPH_WEBHOOK_ALLOW_HTTP": "true",
        "HELIOGRAPH_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8",
        "HELIOGRAPH_DRAIN_SECONDS": "2",
        "HELIOGRAPH_NOT_READY_SECONDS": "0",
    }
    async with contextlib.AsyncExitStack() as stack:

        async def begun(*arguments: str) -> Life:
            log = tmp_path / f"{arguments[0]}.log"
            return await stack.enter_async_context(cli.running(*arguments, err=log, **fast))

        smsc = await begun("simulate", "smsc", "--port", "0", "--system", "acme:geheim", "--magic", "258")
        receiver = await begun("simulate", "receiver")
        endpoint_id = await make_endpoint(receiver.first["url"])
        added = await cli(
            *("supplier", "add", "smpp", "main", "--host", "127.0.0.1", "--no-tls", "--system-id", "acme"),
            *("--port", str(smsc.first["port"]), "--password", "geheim", "--set", "reconnect_seconds=0.1"),
        )
        assert added.status == 0
        api = await begun("api", "--port", "0")
        worker = await begun("worker")
        url = api.first["base_url"]

        async def send(to: str, *more: str) -> Done:
            text = ("--to", to, "--message", "A word in confidence", "--reference", "r1", "--url", url)
            return await cli("send", *text, *more, "--wait", "--json", HELIOGRAPH_API_KEY=secret)

        sent = await send("+258840000000")
        assert sent.data["status"] == "delivered", sent.err
        assert sent.data["idempotency_key"] in sent.err
        assert (sent.data["client_reference"], sent.data["remaining_quota"]) == ("r1", 9)
        again, failed, refused = await asyncio.gather(
            send("+258840000000", "--idempotency-key", sent.data["idempotency_key"]),
            send("+258840000001"),
            send("+12"),
        )
        assert again.data["replayed"] is True
        assert again.data["id"] == sent.data["id"]
        assert failed.status == 1
        assert msgspec.json.decode(failed.out)["status"] == "undelivered"
        assert (refused.status, refused.out) == (1, "")
        assert "validation_error" in refused.err

        await _until(pool, "SELECT sum(cardinality(events)) = 2 FROM webhook_successes")
        plain, tabbed, whole, attempts, hooks, doctor = await asyncio.gather(
            cli("message", "show", sent.data["id"]),
            cli("message", "show", sent.data["id"], "-o", "tsv"),
            cli("message", "show", sent.data["id"], "--text", "--json"),
            cli("webhook", "attempts", endpoint_id, "--json"),
            cli("webhook", "list", "--json"),
            cli("doctor", "--url", url, "--json"),
        )
        assert "+258840000000" in plain.out
        assert "confidence" not in plain.out
        rows = [line.split("\t") for line in tabbed.out.splitlines()]
        assert {len(row) for row in rows} == {2, 3}, tabbed.out
        assert ["recipient", "+258840000000"] in rows
        assert rows[-1][1] == "webhook"
        assert whole.data["text"] == "A word in confidence"
        assert whole.data["message"]["status"] == "delivered"
        assert whole.data["queued"] == []
        kinds = [one["what"] for one in whole.data["entries"]]
        assert set(kinds) >= {"accepted", "attempt", "answer", "part", "receipt", "status", "event", "webhook"}
        assert kinds[0] == "accepted"
        assert [one["at"] for one in whole.data["entries"]] == sorted(one["at"] for one in whole.data["entries"])
        by_kind = {one["what"]: one["detail"] for one in whole.data["entries"]}
        assert by_kind["attempt"]["supplier"] == "main"
        assert by_kind["receipt"]["state"] == "delivered"
        octets = b"A word in confidence".hex(" ")
        assert octets in by_kind["submit"]["octets"]
        assert "data_coding=0x00" in plain.out
        assert octets not in plain.out
        assert {one["kind"] for one in attempts.data} == {"message.delivered", "message.failed"}
        assert [one["id"] for one in hooks.data] == [endpoint_id]
        found = {one["check"]: one["state"] for one in msgspec.json.decode(doctor.out)}
        # Test databases are neither durable nor backed up, and doctor has nothing else to say.
        assert {name for name, state in found.items() if state != "ok"} <= {"durability", "backups"}, doctor.out
        assert found["supplier main"] == "ok"

        worker.process.send_signal(signal.SIGHUP)
        api.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(120):
            assert [await worker.process.wait(), await api.process.wait()] == [0, 0]
        ill, told = await asyncio.gather(
            cli("doctor", "--url", url, "--json"), cli("doctor", "--url", url, "-o", "tsv")
        )
        assert (ill.status, told.status) == (1, 1)
        assert {line.count("\t") for line in told.out.splitlines()} == {2}, told.out
        failures = {one["check"]: one for one in msgspec.json.decode(ill.out) if one["state"] == "failed"}
        assert {"workers", "api", "supplier main"} <= failures.keys()
        assert all(one["remedy"] for one in failures.values())
    logged = "".join(file.read_text() for file in tmp_path.iterdir())
    for word in ("geheim", "confidence", secret, "258840000000", "Traceback"):
        assert word not in logged, logged


async def test_doctor_names_a_foreign_secret_key(cli: Cli) -> None:
    await cli(
        *("supplier", "add", "smpp", "Main line", "--host", "127.0.0.1", "--no-tls", "--system-id", "a"),
        *("--password", "p"),
    )

    another = "the key that came after the one that was lost"

    async def examined() -> dict[str, str]:
        done = await cli("doctor", "--url", "http://127.0.0.1:1", "--json", HELIOGRAPH_SECRET_KEY=another)
        found: dict[str, str] = next(
            one for one in msgspec.json.decode(done.out) if one["check"] == "supplier Main line"
        )
        return found

    found = await examined()
    assert "another secret key" in found["detail"]
    # The remedy is one, if that key has been lost.
    remedy = re.search(r"`heliograph (.*)`", found["remedy"])
    assert remedy
    done = await cli(*shlex.split(remedy[1]), stdin="p\n", HELIOGRAPH_SECRET_KEY=another)
    assert done.status == 0, done.err
    assert "another secret key" not in (await examined())["detail"]
    await cli("supplier", "pause", "Main line")
    assert "`heliograph supplier resume 'Main line'`" in (await examined())["remedy"]


async def test_doctor_opens_the_texts_that_are_sealed(cli: Cli) -> None:
    await cli("org", "create", "Acme", "--country", "any")
    done = await cli("org", "configure", "Acme", "--seal-texts")
    assert done.status == 0, done.err
    done = await cli("doctor", "--url", "http://127.0.0.1:1", "--json")
    assert [
        one for one in msgspec.json.decode(done.out) if one["check"] == "sealed texts" and one["state"] != "ok"
    ] == []


async def test_settings_are_changed_all_or_none(cli: Cli) -> None:
    await cli("org", "create", "Acme", "--country", "any")
    refused = await cli("org", "configure", "Acme", "--seal-texts", "--time-zone", "Nowhere/Else")
    assert (refused.status, "Nowhere/Else" in refused.err) == (2, True)
    shown = (await cli("org", "show", "Acme", "--json")).data
    assert (shown["texts"]["seals_texts"], shown["texts"]["key"]) == (False, "none")
    changed = await cli("org", "configure", "Acme", "--seal-texts", "--time-zone", "Africa/Maputo", "--json")
    assert (changed.data["texts"]["key"], changed.data["time_zone"]) == ("kept", "Africa/Maputo")
    again = await cli("org", "configure", "Acme", "--time-zone", "none", "--stop-reply", "default", "--json")
    assert (again.data["time_zone"], again.data["stop_reply"]) == (None, None)


async def test_closing_what_nobody_can_read_again_has_to_be_confirmed(cli: Cli) -> None:
    for name in ("Acme", "Bakery"):
        await cli("org", "create", name, "--country", "any")
    await cli("org", "configure", "Acme", "--seal-texts")
    asked = await cli("org", "state", "Acme", "closed")
    assert (asked.status, "nobody can read them again" in " ".join(asked.err.split())) == (1, True)
    shown = await cli("org", "show", "Acme", "--json")
    assert (shown.data["state"], shown.data["texts"]["key"]) == ("active", "kept")
    assert (await cli("org", "state", "Acme", "closed", "--yes", "--json")).data["state"] == "closed"
    # Suspending it would make it less than closed.
    assert (await cli("org", "suspend", "Acme")).status == 1
    assert (await cli("org", "show", "Acme", "--json")).data["state"] == "closed"
    # Nothing of this one is destroyed.
    assert (await cli("org", "state", "Bakery", "closed", "--json")).data["state"] == "closed"


FIRST, LAST = "0001-01-01T00:00+05:00", "9999-12-31T23:59-05:00"


async def test_a_value_that_is_wrong_whatever_is_stored_is_wrong_usage(cli: Cli) -> None:
    await cli("org", "create", "Acme", "--country", "any")
    begins = datetime.now(UTC).replace(day=1) + timedelta(days=40)
    for arguments, told in (
        (("campaign", "pause", "abc"), "'abc' is not the id of a campaign"),
        (("campaign", "create", "Hi", "--name", "Sale"), "heliograph: give one of --tag, --import and --to\n"),
        (("key", "create", "--profile", "nope"), "--profile must be one of "),
        (("webhook", "create", "https://example.com", "--event", "nope"), "--event may list only "),
        (("usage", "month", "nov"), "MONTH must be a month such as 2026-11"),
        (("usage", "month", "2026-1"), "MONTH must be a month such as 2026-11"),
        (("usage", "month", f"{begins:%Y-%m}"), f"MONTH must have begun, and {begins:%Y-%m} has not"),
        (("usage", "month", "2026-11", "--by", "nope"), "--by must be one of channel, sender, "),
        (("usage", "month", "2026-11", "--by", "nope"), ", reference\n"),
        (("org", "defaults", "Acme", "--approval-above", "-5"), "-5 is not in the range"),
        (("org", "defaults", "Acme", "--validity", "5"), "--validity must be from 60 to "),
        (("org", "rename", "Acme", "x" * 201), "NAME must have 1 to 200 "),
        (("installation", "set", "--announcement", "Hi", "--until", "soon"), "--until must be a time such as "),
        # Before or after all times that there are, in UTC.
        (("installation", "set", "--announcement", "Hi", "--until", LAST), "--until must be a time such as "),
        (("campaign", "create", "Hi", "--name", "n", "--tag", "x", "--at", FIRST), "--at: must be a time such as "),
        (("webhook", "replay", str(uuid7()), "--from", LAST), "--from: must be a time such as "),
        (("receipts", "report", "--from", "0001-01-01"), "--from: must be a day such as "),
        (("receipts", "report", "--csv", "--to", "9999-12-31T23:59:59Z"), "--to: must be a day such as "),
        (("margin", "--from", "2026-01-01", "--to", "9999-12-31"), "--to: must be a day such as "),
        # A digit that is no number.
        (("key", "create", "--expires", "²d"), "--expires: must be a time such as "),
        (("quota", "limit", "²"), "give a number of segments"),
        (("org", "plan", "Acme", "p", "--quota", "9" * 20), "--quota must be "),
        (("org", "create", "Bakery", "--country", "any", "--grant", "9" * 20), "--grant must be "),
        (("quota", "alert", "9" * 20), "MESSAGES must be "),
        # More digits than Python reads.
        (("key", "create", "--expires", f"{'9' * 5000}d"), "--expires: too far in the future"),
        (("quota", "limit", "9" * 5000), "SEGMENTS: give a number of segments"),
        (("quota", "alert", "9" * 5000), "MESSAGES: must be a number of messages"),
        # A power of ten that takes minutes to calculate, and what a Fraction reads besides decimal numbers.
        (("rates", "draft", "main", "--markup", "1e99999999"), "--markup: must be a number such as 12.5"),
        (("rates", "draft", "main", "--margin", "1_0"), "--margin: must be a number such as 12.5"),
    ):
        done = await cli(*arguments)
        assert (done.status, done.out, told in done.err) == (2, "", True), (arguments, done.err)


async def test_what_is_unknown_is_refused(cli: Cli) -> None:
    id = str(uuid7())
    for done in await asyncio.gather(
        cli("message", "show", id), cli("webhook", "attempts", id), cli("key", "revoke", id)
    ):
        assert (done.status, done.out) == (1, "")
        assert "no such" in done.err
    await cli("org", "create", "Acme", "--country", "any")
    removals = (("supplier",), ("route",), ("lookup",), ("whatsapp", "account"))
    for done in await asyncio.gather(*(cli(*noun, "remove", "nope") for noun in removals)):
        # Nobody is asked about what is not there.
        assert (done.status, "[y/N]" in done.err, "confirmed" in done.err) == (1, False, False), done.err


@pytest.fixture
def make_endpoint(pool: Pool) -> Callable[..., Any]:
    """Registers a webhook for the only organization."""

    async def make(url: str) -> str:
        settings = Settings(secret_key=SECRET_KEY, webhook_allow_http=True, webhook_allow_networks="127.0.0.0/8")
        async with pool.acquire() as conn:
            found = await organizations.find(conn, reference=None)
            actor = Actor(found.id, None, "live", frozenset(), found.state)
            made, _ = await endpoints.create(
                conn,
                actor,
                url=url,
                subscribed_events=["message.delivered", "message.failed"],
                rules=endpoints.rules(settings),
            )
        return str(made.id)

    return make


async def _until(pool: Pool, condition: str) -> None:
    async with asyncio.timeout(120):
        while True:
            if await pool.fetchval(condition):
                return
            await asyncio.sleep(0.05)


def _appending(path: Path) -> BinaryIO:
    return path.open("ab")


async def test_a_supplier_over_http_is_added_and_changed(cli: Cli) -> None:
    environment = {"HELIOGRAPH_PUBLIC_URL": "https://sms.example.net"}
    add = ("supplier", "add", "http", "one", "--base-url", "https://gateway.example", "--json")
    made, wrong, missing, listed = await asyncio.gather(
        cli(
            *add,
            *("--codes", "0=accepted", "--codes", "7=no_credit", "--headers", "X-Key={{secret}}", "--window", "5"),
            *("--signature-header", "X-Sig", "--signature-secret", "geheim2"),
            stdin="geheim1\n",
            **environment,
        ),
        cli(*add, "--id-at", "id", stdin="geheim1\n"),
        cli("supplier", "add", "twilio", "two", stdin="geheim1\n"),
        cli("supplier", "options", "http", "--json"),
    )
    assert made.data["callbacks"].startswith(f"https://sms.example.net/in/sms/{made.data['id']}/")
    assert made.data["settings"]["codes"] == {"0": "accepted", "7": "no_credit"}
    assert made.data["address"] == "https://gateway.example"
    assert "geheim" not in made.out + made.err
    assert wrong.status == 2
    assert "id_at" in wrong.err
    assert missing.status == 2
    assert "--account-sid" in missing.err
    assert "codes" in {one["setting"] for one in listed.data}
    changed = await cli("supplier", "set", "one", "codes.9=later", "window=", "signature_secret=geheim3", "--json")
    changes = {one["setting"]: one["after"] for one in changed.data["changes"]}
    assert changes == {
        "codes": {"0": "accepted", "7": "no_credit", "9": "later"},
        "window": 20,
        "signature_secret": "a new one",
    }
    again = await cli("supplier", "set", "one", "signature_secret=geheim3")
    assert "unchanged" in again.err
    unknown = await cli("supplier", "set", "one", "system_id=a")
    assert unknown.status == 2
    assert "supplier options http" in unknown.err
