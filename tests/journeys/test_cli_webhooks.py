"""Webhooks from the command line: what operators resend, to whom, and the output."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any

import msgspec
from click.testing import Result
from typer.testing import CliRunner

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Refusal
from heliograph.cli import app
from heliograph.webhooks import endpoints, replays
from tests.hooks import delivering, endpoint, organization, record, settings, until

URL = "https://example.com/hooks"


class Cli:
    """Runs commands in this process: a process for each would take most of the time."""

    def __init__(self, database_url: str) -> None:
        self._environment = {"HELIOGRAPH_DATABASE_URL": database_url, "HELIOGRAPH_SECRET_KEY": settings().secret_key}

    async def __call__(self, *arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, app, ["webhook", *arguments], env=self._environment)

    async def data(self, *arguments: str) -> Any:
        done = await self(*arguments, "--json")
        assert done.exit_code == 0, done.output
        return msgspec.json.decode(done.stdout)


async def test_an_operator_sends_again(database_url: str, pool: Pool) -> None:
    cli, actor = Cli(database_url), await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    (event_id,) = await record(pool, actor)
    await pool.execute("DELETE FROM queue")
    assert await cli.data("resend", str(id), event_id) == {"event_id": event_id, "endpoint_id": str(id)}
    example = await cli.data("test", str(id))
    queued = {str(row["id"]) for row in await pool.fetch("SELECT id FROM queue")}
    assert queued == {event_id, example["event_id"]}
    begun = await cli.data("replay", str(id), "--from", "2h", "--kind", "message.delivered", "--only-failed")
    assert (begun["status"], begun["kinds"], begun["only_failed"]) == ("running", ["message.delivered"], True)
    async with pool.acquire() as conn:
        await replays.advance(conn)
    (listed,) = await cli.data("replays", str(id))
    assert (listed["id"], listed["status"]) == (begun["id"], "completed")
    at = clock.iso(clock.now() - timedelta(days=2))
    assert (await cli.data("replay", str(id), "--from", at, "--to", "1d"))["from_at"] == at
    assert await cli.data("attempts", str(id)) == []
    await pool.execute(
        "INSERT INTO webhook_attempts SELECT $1, $2, $3, n, now(), 5, NULL, 'timeout', '' FROM generate_series(1, 3) n",
        actor.organization_id,
        event_id,
        id,
    )
    for chosen, wanted in (
        (("--failed", "--from", "1h", "--kind", "message.delivered", "--limit", "2"), [3, 2]),
        (("--result", "timeout"), [3, 2, 1]),
        (("--result", "delivered"), []),
        (("--to", "1h"), []),
    ):
        assert [one["attempt"] for one in await cli.data("attempts", str(id), *chosen)] == wanted, chosen


async def test_an_operator_makes_one_changes_it_and_sees_how_it_does(database_url: str, pool: Pool) -> None:
    cli, actor = Cli(database_url), await organization(pool)
    made = await cli.data("create", URL, "--event", "message.failed", "--mode", "test")
    assert made["signing_secret"].startswith("whsec_")
    assert (made["mode"], made["subscribed_events"]) == ("test", ["message.failed"])
    shown = await cli.data("show", made["id"], "--hours", "48")
    assert (shown["state"], shown["attempts"], shown["waiting"]) == ("new", {}, 0)
    changed = await cli.data("update", made["id"], "--event", "message.read", "--description", "shop", "--disable")
    assert (changed["status"], changed["disabled_reason"]) == ("disabled", "requested")
    assert (changed["subscribed_events"], changed["description"]) == (["message.read"], "shop")
    assert (await cli.data("update", made["id"], "--enable"))["status"] == "active"
    assert (await cli("update", made["id"])).exit_code == 2
    assert isinstance((await cli("create", "http://10.0.0.1/")).exception, Refusal)
    assert len((await cli.data("create", URL))["subscribed_events"]) > 10
    told = await pool.fetch(
        "SELECT action FROM audit_log WHERE organization_id = $1 ORDER BY id", actor.organization_id
    )
    assert {row["action"] for row in told} == {"webhook.created", "webhook.changed"}


async def test_an_operator_replaces_a_secret(database_url: str, pool: Pool) -> None:
    cli, actor = Cli(database_url), await organization(pool)
    id, old = await endpoint(pool, actor, URL)
    rotated = await cli.data("rotate", str(id))
    assert rotated["signing_secret"] != old
    sealed = await pool.fetchval("SELECT secret FROM webhook_endpoints")
    key = endpoints.seal_key(settings())
    opened = endpoints.open_secret(key, organization_id=actor.organization_id, id=id, sealed=sealed)
    assert opened == rotated["signing_secret"]
    assert rotated["previous_secret_expires_at"] > clock.iso(clock.now() + timedelta(hours=23))
    assert "signing secret" not in (await cli("list")).output


async def test_what_cannot_be_meant(database_url: str, pool: Pool) -> None:
    cli, actor = Cli(database_url), await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    for arguments in (
        ("replay", str(id), "--from", "yesterday"),
        ("replay", str(id), "--from", "2026-03-01T00:00:00"),
        ("replay", str(id)),
        ("attempts", str(id), "--failed", "--result", "timeout"),
        ("attempts", str(id), "--from", "yesterday"),
        ("test", "x"),
        ("update", str(id), "--recover"),
    ):
        assert (await cli(*arguments)).exit_code == 2, arguments
    for arguments in (
        ("test", str(actor.organization_id)),
        ("resend", str(id), str(id)),
        ("replay", str(id), "--from", "60d"),
        ("replays", str(actor.organization_id)),
    ):
        assert isinstance((await cli(*arguments)).exception, Refusal), arguments
    for arguments, told in (
        (("test", str(actor.organization_id)), "There is no such webhook endpoint."),
        (("resend", str(id), str(id)), "There is no such event."),
        (("attempts", str(id), "--result", "eaten"), "--result must be one of failed, "),
        (("attempts", str(id), "--kind", "message.eaten"), "--kind must be one of message.delivered, "),
        (("test", str(id), "--kind", "nope"), "--kind must be one of message.delivered, "),
        (("replay", str(id), "--from", "2h", "--kind", "nope"), "--kind may list only subscribed kinds: "),
        (("replay", str(id), "--from", "60d"), "--from must be within the last 30 days"),
        (("replay", str(id), "--from", "1h", "--to", "2h"), "--from must be before --to"),
        (("create", URL, "--event", "nope"), "--event may list only message.delivered, "),
        (("update", str(id), "--event", "nope"), "--event may list only message.delivered, "),
        (("create", "ftp://example.com"), "URL is refused: "),
    ):
        assert str((await cli(*arguments)).exception).startswith(told), arguments
    assert (await cli.data("show", str(id)))["attempts"] == {}
    assert re.search("^attempts +-$", (await cli("show", str(id))).output, re.MULTILINE)


async def test_an_operator_pauses_one_and_lets_it_recover(database_url: str, pool: Pool) -> None:
    cli, actor = Cli(database_url), await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    assert (await cli.data("pause", str(id)))["status"] == "paused"
    await record(pool, actor)
    shown = await cli.data("show", str(id))
    assert (shown["state"], shown["waiting"]) == ("paused", 1)
    assert shown["missed_since"] is not None
    assert (await cli.data("resume", str(id)))["status"] == "active"
    (listed,) = await cli.data("replays", str(id))
    assert (listed["cause"], listed["status"], listed["only_failed"]) == ("return", "running", True)
    await cli.data("update", str(id), "--disable")
    assert (await cli.data("update", str(id), "--enable", "--recover"))["status"] == "active"


async def test_an_operator_looks_into_a_catcher(database_url: str, pool: Pool) -> None:
    cli, actor = Cli(database_url), await organization(pool)
    assert await cli.data("catcher", "show") == []
    opened = await cli.data("catcher", "open")
    assert opened["signing_secret"].startswith("whsec_")
    (event_id,) = await record(pool, actor)
    async with delivering(pool):
        await until(lambda: _caught(cli))
    (caught,) = await cli.data("catcher", "show", "--limit", "5")
    assert (caught["event_id"], caught["kind"], caught["is_genuine"]) == (event_id, "message.delivered", True)
    assert await cli.data("catcher", "show", "--mode", "test") == []
    await cli.data("catcher", "close")
    assert await cli.data("catcher", "show") == []


async def _caught(cli: Cli) -> bool:
    return bool(await cli.data("catcher", "show"))
