"""`heliograph whatsapp campaign`, as an operator uses it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.campaigns import counting
from heliograph.campaigns.staging import Stager
from heliograph.cli import app
from heliograph.cli.audience import campaign
from heliograph.cli.traffic import message
from heliograph.cli.whatsapp import campaign as whatsapp_campaign
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from tests import forks
from tests.rules.test_campaigns import imported
from tests.rules.whatsapp_factories import Made, made

WHAT = (
    *("--template", "order_shipped", "--language", "en", "--name", "Delivery day", "--tag", "porto"),
    *("--param", "first_name", "--default", "first_name=customer", "--param", "text:Thursday"),
)


async def call(url: str, *arguments: str) -> Result:
    """In this process: this is about campaigns, not about how commands start and end."""
    environment = {"HELIOGRAPH_DATABASE_URL": url}
    return await asyncio.to_thread(CliRunner().invoke, app, ["whatsapp", "campaign", *arguments], env=environment)


async def data(url: str, *arguments: str) -> Any:
    done = await call(url, *arguments, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return msgspec.json.decode(done.stdout)


@pytest.fixture
async def known(pool: Pool) -> Made:
    """An organization with three contacts in Porto, one of whom has a first name."""
    found = await made(pool)
    entries = [
        Entry(f"+25884{n:07}", "Ana", first_name=name, tags=("porto",)) for n, name in enumerate(("Ana", None, None))
    ]
    async with pool.acquire() as conn, conn.transaction():
        await records.create_many(conn, found.actor, entries=entries)
    return found


async def test_create_list_show_cancel(pool: Pool, database_url: str, known: Made) -> None:
    created = await data(database_url, "create", "--number", known.digits, *WHAT)
    assert (created["channel"], created["status"], created["template_name"]) == ("whatsapp", "staging", "order_shipped")
    at = "2030-01-01T00:00:00Z"
    second = await call(
        database_url, "create", "--number", str(known.number_id), *WHAT, "--at", at, "--per-minute", "60"
    )
    assert second.exit_code != 0, "it is more than a year ahead"
    shown = await data(database_url, "show", created["id"])
    assert shown["parameters"] == ["first_name (customer)", "text:Thursday"]
    assert [one["id"] for one in await data(database_url, "list")] == [created["id"]]
    assert "order_shipped" in (await call(database_url, "list")).stdout
    stager = Stager(pool)
    while await stager.round():
        continue
    rows = await pool.fetch("SELECT content FROM whatsapp_messages")
    values = sorted(msgspec.json.decode(row["content"])["parameters"][0] for row in rows)
    assert values == ["Ana", "customer", "customer"]
    for word, status in (("pause", "paused"), ("resume", "running")):
        assert (await data(database_url, word, created["id"]))["status"] == status
    canceled = await data(database_url, "cancel", created["id"])
    assert canceled["status"] == "canceled"
    # It is not an SMS campaign.
    refused = await asyncio.to_thread(
        CliRunner().invoke, app, ["campaign", "show", created["id"]], env={"HELIOGRAPH_DATABASE_URL": database_url}
    )
    assert isinstance(refused.exception, NotFound)


async def test_the_people_of_an_import(pool: Pool, database_url: str, known: Made, tmp_path: Path) -> None:
    what = [one for one in WHAT if one not in ("--tag", "porto")]
    id = await imported(pool, known.actor, tmp_path, "+258840000001,Rui,", "+258840000007,Eva,porto")
    made = await data(database_url, "create", "--number", known.digits, *what, "--import", str(id))
    assert (made["audience_import"], made["audience_tags"]) == (str(id), None)
    stager = Stager(pool)
    while await stager.round():
        continue
    sent = {row["recipient"] for row in await pool.fetch("SELECT recipient FROM whatsapp_messages")}
    assert sent == {"+258840000001", "+258840000007"}
    for audience in ((), ("--tag", "porto", "--import", str(id))):
        done = await call(database_url, "create", "--number", known.digits, *what, *audience)
        assert (done.exit_code, "give one of --tag and --import" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--number", "+1999"), "is not a WhatsApp number"),
        (("--param", "tags"), "a parameter must be one of"),
        (("--default", "phone=x"), "no parameter is filled from 'phone'"),
        (("--param", "phone"), "a different number of parameters"),
    ],
)
async def test_what_is_refused(database_url: str, known: Made, change: tuple[str, ...], words: str) -> None:
    done = await call(database_url, "create", "--number", known.digits, *WHAT, *change)
    assert words in str(done.exception)


@pytest.mark.parametrize("change", [("--match", "some"), ("--default", "x"), ("--at", "soon"), ("--per-minute", "0")])
async def test_wrong_usage(database_url: str, known: Made, change: tuple[str, ...]) -> None:
    done = await call(database_url, "create", "--number", known.digits, *WHAT, *change)
    assert done.exit_code == 2
    assert not isinstance(done.exception, Invalid)


async def test_create_and_watch_until_it_is_done(pool: Pool, database_url: str, known: Made) -> None:
    process = await forks.start(
        *("whatsapp", "campaign", "create", "--watch", "--number", known.digits),
        *WHAT,
        environment={**os.environ, "HELIOGRAPH_DATABASE_URL": database_url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stager = Stager(pool)
    async with asyncio.timeout(120):
        while await pool.fetchval("SELECT queued FROM campaigns") != 3:
            await stager.round()
            await asyncio.sleep(0.02)
    await pool.execute("UPDATE whatsapp_messages SET status = 'read'")
    await pool.execute("UPDATE campaign_chunks SET count_at = now()")
    async with pool.acquire() as conn, conn.transaction():
        await counting.count_due(conn)
    out, drawn = await asyncio.wait_for(process.communicate(), 120)
    assert b"Delivery day" in out
    assert b"100% of 3  completed  read 3" in drawn
    assert process.returncode == 0


def test_lists_of_both_channels_have_the_same_columns() -> None:
    assert [one for one in whatsapp_campaign.COLUMNS if one != "template_name"] == list(campaign.COLUMNS)
    assert {"client_reference", "accepted_at", "failure_code"} <= set(message.COLUMNS) & set(message.WHATSAPP_COLUMNS)
