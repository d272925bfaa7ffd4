"""Commands for callbacks: simulate one, which is processed like Meta's, and inspect dead letters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from heliograph.base.database.pool import Pool
from heliograph.base.errors import Refusal
from heliograph.base.process.settings import Settings
from heliograph.cli import app
from heliograph.cli.terminal.console import Problem
from heliograph.serve import bound, serve
from heliograph.simulators.graph.simulator import GraphSimulator, quick
from tests.rules.callback_factories import Meta, message
from tests.rules.factories import TO
from tests.rules.whatsapp_factories import SECRET_KEY, Made, made, number
from tests.rules.whatsapp_factories import message as outbound

Command = Callable[..., Awaitable[Any]]


@contextlib.asynccontextmanager
async def serving(database_url: str) -> AsyncIterator[str]:
    """Do a web process's work in this process; yields its address."""
    stop, ready = asyncio.Event(), asyncio.Event()
    settings = Settings(database_url=database_url, secret_key=SECRET_KEY, drain_seconds=2.0, not_ready_seconds=0.0)
    with bound("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        task = asyncio.create_task(
            serve(settings, sockets=[sock], on_ready=lambda _: ready.set(), stop=stop, own_process=False)
        )
        try:
            await asyncio.wait_for(ready.wait(), 120)
            yield f"http://127.0.0.1:{port}"
        finally:
            stop.set()
            await task


@pytest.fixture
async def command(database_url: str) -> AsyncIterator[Command]:
    """Runs `heliograph whatsapp inbound`; returns its data, or the error that it ends with."""
    environment = {"HELIOGRAPH_DATABASE_URL": database_url, "HELIOGRAPH_SECRET_KEY": SECRET_KEY}

    async def run(*arguments: str) -> Any:
        whole = ["whatsapp", "inbound", *arguments]
        done = await asyncio.to_thread(CliRunner().invoke, app, whole, env=environment)
        if isinstance(done.exception, Refusal):
            return done.exception.code
        if isinstance(done.exception, Problem):
            return "problem"
        assert done.exit_code in (0, 2), f"{done.output} {done.exception!r}"
        if done.exit_code == 2:
            return "usage"
        return msgspec.json.decode(done.stdout) if "--json" in arguments else done.output

    async with serving(database_url) as url:
        yield lambda *arguments: run(*arguments, *(["--url", url] if arguments[0] == "simulate" else []))


@pytest.fixture
async def acme(pool: Pool) -> Made:
    return await made(pool)


async def test_a_message_that_is_made_up_goes_the_whole_way(pool: Pool, acme: Made, command: Command) -> None:
    answer = await command("simulate", "--from", TO, "--text", "Où est mon colis ?", "--ago", "9", "--json")
    assert answer["number"] == acme.digits
    assert await command("simulate", "--from", TO, "--type", "image", "--text", "Look", "--number", f"+{acme.digits}")
    await Meta(pool).work()
    rows = await pool.fetch("SELECT type, recipient FROM whatsapp_messages ORDER BY id")
    assert [tuple(row) for row in rows] == [("text", TO), ("image", TO)]
    text = await pool.fetchval("SELECT content FROM whatsapp_messages ORDER BY id LIMIT 1")
    assert msgspec.json.decode(text)["body"] == "Où est mon colis ?"


async def test_a_user_who_was_made_up_can_be_answered_at_the_stand_in_of_meta(pool: Pool, command: Command) -> None:
    async with GraphSimulator(quick()) as graph:
        acme = await made(pool, base_url=graph.base_url)
        graph.add_number(acme.graph_id, acme.digits)
        key = (acme.graph_id, graph.user(TO).key)
        assert await command("simulate", "--from", TO, "--ago", "90000")
        assert key not in graph.world.windows
        assert await command("simulate", "--from", TO, "--ago", "600")
        assert 80_000 < graph.world.windows[key] - graph.clock.now() < 86_000


async def test_a_status_that_is_made_up_moves_its_message(pool: Pool, acme: Made, command: Command) -> None:
    read, failed = [str(await outbound(pool, acme, queued=False)) for _ in range(2)]
    await command("simulate", "--status", "read", "--message", read)
    await command("simulate", "--status", "failed", "--message", failed, "--error", "131026")
    await Meta(pool).work()
    rows = await pool.fetch("SELECT id::text, status, failure_code FROM whatsapp_messages")
    assert {tuple(row) for row in rows} == {(read, "read", None), (failed, "failed", "recipient_unreachable")}


async def test_what_is_asked_wrongly_is_named(pool: Pool, acme: Made, command: Command) -> None:
    for wrong in ([], ["--from", TO, "--status", "read"], ["--status", "read"]):
        assert await command("simulate", *wrong) == "usage"
    for ago in ("1e18", "inf", "nan"):
        assert await command("simulate", "--from", TO, "--ago", ago) == "usage"
    for wrong in (
        ["--from", "841"],
        ["--from", "841234567"],  # Mozambican, but +84 is Viet Nam
        ["--from", TO.removeprefix("+")],
        ["--from", TO, "--type", "hologram"],
        ["--status", "levitated", "--message", str(acme.number_id)],
        ["--status", "read", "--message", "the last one"],
    ):
        assert await command("simulate", *wrong) == "validation_error", wrong
    assert await command("simulate", "--status", "read", "--message", str(acme.number_id)) == "not_found"
    assert await command("simulate", "--from", TO, "--number", "404") == "not_found"
    await number(pool, acme.organization_id, acme.account_id)
    assert await command("simulate", "--from", TO) == "validation_error"
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_callbacks") == 0
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'callback.simulated'") == 0


async def test_dead_letters_are_listed_and_retried(pool: Pool, acme: Made, command: Command) -> None:
    await Meta(pool).say(acme, message(acme, "to a new number", graph_id="777"))
    (one,) = await command("dead-letters", "--json")
    assert one["reason"] == "unknown number"
    assert "item" not in one
    (one,) = await command("dead-letters", "--items", "--json")
    assert "to a new number" in one["item"]
    await pool.execute("UPDATE whatsapp_numbers SET graph_id = '777'")
    assert await command("retry", "--json") == {"looked_at": 1, "applied": 1}
    assert await command("dead-letters", "--json") == []
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 1


async def test_a_dead_letter_is_given_up(pool: Pool, acme: Made, command: Command) -> None:
    await Meta(pool).say(acme, message(acme, "to a new number", graph_id="777"))
    (one,) = await command("dead-letters", "--json")
    assert await command("drop", one["id"]) == "problem"  # nobody is there to confirm it
    done = await command("drop", one["id"], "--reason", "its number was sold", "--yes", "--json")
    assert done == {"id": one["id"], "state": "dropped"}
    assert await command("dead-letters", "--json") == []
    for words in (["--yes"], []):  # nobody is asked about one that does not exist
        assert await command("drop", one["id"], *words) == "not_found"
    assert await command("retry", one["id"]) == "not_found"
    told = await pool.fetchrow("SELECT who, reason FROM audit_log WHERE action = 'callback.dropped'")
    assert tuple(told) == ("cli", "its number was sold")
