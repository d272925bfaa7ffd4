"""Commands for messages from handsets: list and retry them, add and remove opt-outs, set keywords and replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest
from typer.testing import CliRunner

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Refusal
from heliograph.cli import app
from heliograph.queue import timers
from heliograph.sms.received import inbound, inbox
from heliograph.suppliers.contract import Inbound
from tests.rules.factories import TO, organization, sender

NUMBER = "258800001234"
Command = Callable[..., Awaitable[Any]]


@pytest.fixture
def command(database_url: str) -> Command:
    """Runs a command in this process; returns its data, or the error that it ends with."""
    environment = {"HELIOGRAPH_DATABASE_URL": database_url}

    async def run(*arguments: str) -> Any:
        done = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environment)
        if isinstance(done.exception, Refusal):
            return done.exception.code
        assert done.exit_code in (0, 2), f"{done.output} {done.exception!r}"
        if done.exit_code == 2:
            return "usage"
        return msgspec.json.decode(done.stdout) if "--json" in arguments else done.output

    return run


async def receive_message(pool: Pool, *texts: str, to: str = NUMBER) -> None:
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)
        some = [Inbound(TO[1:], to, text, b"raw") for text in texts]
        await inbound.acknowledged(conn, await inbound.store(conn, UUID(int=5), some))
        await inbox.process_due(conn)


async def test_received_and_unassigned_messages_are_listed(pool: Pool, command: Command) -> None:
    actor = await organization(pool)
    await receive_message(pool, "for nobody")
    assert await command("inbound", "list", "--json") == []
    async with pool.acquire() as conn:
        late, waiting = await inbound.standing(conn)
        assert (late, waiting) == (0, 1)
    (row,) = await command("inbound", "list", "--unassigned", "--json")
    assert (row["sender"], row["recipient"], row["organization_id"]) == (TO[1:], NUMBER, None)
    await sender(pool, actor, NUMBER)
    assert await command("inbound", "retry", "--json") == {"count": 1}
    await receive_message(pool, "STOP")
    stop, first = await command("inbound", "list", "--text", "--json")
    assert (stop["text"], stop["keyword"], first["text"], first["keyword"]) == ("STOP", "stop", "for nobody", None)
    assert "text" not in (await command("inbound", "list", "--json"))[0]
    assert "STOP" not in await command("inbound", "list")
    assert TO in await command("inbound", "list", "--text", "--limit", "1")
    assert await command("inbound", "list", "--unassigned", "--json") == []


async def test_opt_outs_are_listed_added_and_removed(pool: Pool, command: Command) -> None:
    await sender(pool, await organization(pool), NUMBER)
    await receive_message(pool, "stop")
    made = await command("optout", "add", "+258 84 000 00 09", "--json")
    assert (made["recipient"], made["source"]) == ("+258840000009", "operator")
    listed = await command("optout", "list", "--json")
    assert [(one["recipient"], one["keyword"]) for one in listed] == [("+258840000009", None), (TO, "stop")]
    assert (await command("optout", "remove", TO, "--json"))["keyword"] == "stop"
    assert await command("optout", "remove", TO) == "not_found"
    assert await command("optout", "add", "841") == "validation_error"
    assert len(await command("optout", "list", "--json")) == 1


async def test_an_organizations_rules_are_set_one_by_one(pool: Pool, command: Command) -> None:
    actor = await organization(pool)

    async def configured(*options: str) -> Any:
        return await command("org", "configure", str(actor.organization_id), *options, "--json")

    before = await configured()
    assert (before["opt_out_words"], before["stop_reply"], before["help_reply"]) == ([], None, None)
    after = await configured("--opt-out-word", "ARRÊT", "--opt-out-word", " SAIR ", "--stop-reply", "Adieu")
    assert (after["opt_out_words"], after["stop_reply"]) == (["ARRÊT", "SAIR"], "Adieu")
    after = await configured("--help-reply", "", "--country", "mz", "--smart-encoding", "--replace-accents")
    assert (after["help_reply"], after["stop_reply"], after["allowed_countries"]) == ("", "Adieu", ["MZ"])
    assert (after["smart_encoding"], after["replace_accents"]) == (True, True)
    assert (await configured("--reply-language", "fr"))["reply_language"] == "fr"
    assert await configured("--reply-language", "xx") == "validation_error"
    assert (await configured("--reply-language", "none"))["reply_language"] is None
    after = await configured("--opt-out-word", "none", "--stop-reply", "default", "--country", "any")
    after |= {"smart_encoding": False, "replace_accents": False, "help_reply": None}
    assert after == before
    for options in (("--opt-out-word", "!?"), ("--opt-out-word", "x" * 65), ("--help-reply", "x" * 269)):
        assert await configured(*options) == "validation_error"
    assert await configured("--country", "Mozambique") == "usage"
    words = [option for n in range(51) for option in ("--opt-out-word", f"w{n}")]
    assert await configured(*words) == "validation_error"


async def test_a_number_of_nobody_is_given_to_an_organization(pool: Pool, command: Command) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)
        await inbound.store(conn, UUID(int=101), [Inbound(TO[1:], "258899999999", "hello", b"raw")])
        await inbox.process_due(conn)
    (found,) = await command("inbound", "numbers", "--json")
    assert (found["recipient"], found["count"], found["why"], found["organizations"]) == (
        "258899999999",
        1,
        "nobody",
        [],
    )
    to = ("--org", str(actor.organization_id), "--json")
    assert await command("inbound", "assign", "258811111111", *to) == "not_found"
    assert await command("inbound", "assign", "258899999999", *to) == {"count": 1}
    async with pool.acquire() as conn:
        await inbox.process_due(conn)
        assert len(await inbound.received(conn, organization_id=actor.organization_id, limit=9)) == 1
    assert await command("inbound", "numbers", "--json") == []


async def test_a_number_that_another_organization_has_is_told(pool: Pool, database_url: str) -> None:
    """Messages to it would belong to nobody."""
    one, other = await organization(pool), await organization(pool)
    environment = {"HELIOGRAPH_DATABASE_URL": database_url}

    async def approve(actor: Actor, value: str) -> bool:
        words = ["sender", "request", value, "--approve", "--org", str(actor.organization_id), "--json"]
        done = await asyncio.to_thread(CliRunner().invoke, app, words, env=environment)
        assert msgspec.json.decode(done.stdout)["status"] == "approved"
        return "belongs to nobody" in done.stderr

    assert [await approve(actor, NUMBER) for actor in (one, other)] == [False, True]
    assert [await approve(actor, "Padaria") for actor in (one, other)] == [False, False]
