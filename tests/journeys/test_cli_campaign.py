"""`heliograph campaign` while a worker stages one."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.campaigns import counting
from heliograph.campaigns.channels import sms as sms_channel
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.campaigns.plan import CampaignNotPausable
from heliograph.campaigns.record import Campaign
from heliograph.campaigns.staging import Stager
from heliograph.cli import app
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from tests import forks
from tests.rules.factories import organization


async def call(url: str, *arguments: str) -> Result:
    """In this process: this is about campaigns, not about how commands start and end."""
    environment = {"HELIOGRAPH_DATABASE_URL": url}
    return await asyncio.to_thread(CliRunner().invoke, app, ["campaign", *arguments], env=environment)


async def data(url: str, *arguments: str) -> Any:
    done = await call(url, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return msgspec.json.decode(done.stdout)


async def create(pool: Pool, actor: Actor, amount: int) -> Campaign:
    spec = SmsCampaignSpec(name="Sale", message_template="Hi", recipients=[f"+25884{n:07}" for n in range(amount)])
    async with pool.acquire() as conn, conn.transaction():
        return await sms_channel.create(conn, actor, spec=spec, request_id="req")


async def test_one_is_created_for_tags_or_for_numbers(pool: Pool, database_url: str) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        for n, tags in enumerate((("vip",), ("vip", "away"), ())):
            await records.create(conn, actor, entry=Entry(f"+25884000000{n}", "Ana", tags=tags))
    tagged = await data(
        database_url, "create", "Hello {{name}}", "--name", "Sale", "--tag", "vip", "--exclude-tag", "away"
    )
    assert (tagged["status"], tagged["message_template"]) == ("staging", "Hello {{name}}")
    listed = await data(database_url, "create", "Hi", "--name", "Two", "--to", "+258841111111", "--to", "+258842222222")
    assert listed["recipient_count"] == 2
    # Numbers are read as everywhere else on the command line: without a country this might be Vietnamese.
    local = ("create", "Hi", "--name", "Local", "--to", "84 123 4567", "--to", "+258841111111", "--to", "841111111")
    refused = str((await call(database_url, *local)).exception)
    assert refused == "--to must be phone numbers with + and country code, not 84 123 4567, 841111111"
    await pool.execute("UPDATE organizations SET country = 'MZ'")
    assert (await data(database_url, *local))["recipient_count"] == 2
    query = "SELECT phone FROM campaign_recipients ORDER BY campaign_id DESC, phone LIMIT 2"
    assert [one["phone"] for one in await pool.fetch(query)] == ["+258841111111", "+258841234567"]
    at = clock.iso(clock.now() + timedelta(days=30))
    later = await data(database_url, "create", "Hi", "--name", "Later", "--tag", "vip", "--at", at)
    assert later["status"] == "scheduled"
    for words in (("  ", "--tag", "vip"), ("Hi",), ("Hi", "--tag", "vip", "--to", "+258841111111")):
        assert (await call(database_url, "create", "--name", "Wrong", *words)).exit_code != 0
    for words, told in (
        ((), "give one of --tag, --import and --to"),
        (("--tag", "vip", "--at", "2999-03-02T08:00:00Z"), "--at must be between 60 seconds ago and 365 days ahead"),
        (
            ("--to", "+258841111111", "--exclude-tag", "away"),
            "--exclude-tag does not go with --to: numbers have no tags",
        ),
    ):
        assert str((await call(database_url, "create", "Hi", "--name", "Wrong", *words)).exception) == told
    for word in ("show", "pause", "resume", "cancel", "watch"):
        done = await call(database_url, word, "abc")
        assert (done.exit_code, "'abc' is not the id of a campaign" in done.output) == (2, True), word


async def test_whoever_creates_one_is_warned_of_what_may_be_unintended(pool: Pool, database_url: str) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await records.create(conn, actor, entry=Entry("+258840000000", "Ana", tags=("vip",)))
    done = await call(
        database_url,
        *("create", "Hi {nosuch}", "--name", "Sale", "--tag", "VIP", "--tag", "Porto", "--exclude-tag", "nobody"),
    )
    assert done.exit_code == 0, done.output
    assert done.stderr == (
        "Warning: sent as it is, since a placeholder has two braces on each side: {nosuch}.\n"
        "Warning: no contact has the tag porto or nobody.\n"
    )
    assert (await call(database_url, "create", "Hi {{name}}", "--name", "Two", "--tag", "vip")).stderr == ""


async def test_list_show_cancel(pool: Pool, database_url: str) -> None:
    actor = await organization(pool)
    made = [await create(pool, actor, 3) for _ in range(2)]
    listed = await data(database_url, "list")
    assert [one["id"] for one in listed] == [str(one.id) for one in reversed(made)]
    assert [one["id"] for one in await data(database_url, "list", "--limit", "1")] == [str(made[1].id)]
    assert "staging" in (await call(database_url, "list")).stdout
    shown = await data(database_url, "show", str(made[0].id))
    assert (shown["recipient_count"], shown["counts"]["pending"]) == (3, 3)
    canceled = await data(database_url, "cancel", str(made[0].id))
    assert (canceled["status"], canceled["counts"]["canceled"]) == ("canceled", 3)
    with pytest.raises(NotFound):
        raise (await call(database_url, "show", str(uuid7()))).exception or AssertionError


async def test_pause_and_resume(pool: Pool, database_url: str) -> None:
    actor = await organization(pool)
    made = await create(pool, actor, 3)
    early = await call(database_url, "pause", str(made.id))
    assert isinstance(early.exception, CampaignNotPausable), "it has not begun"
    stager = Stager(pool)
    while await stager.round():
        continue
    assert (await data(database_url, "show", str(made.id)))["status"] == "running"
    for _ in range(2):
        paused = await data(database_url, "pause", str(made.id))
        assert (paused["id"], paused["status"]) == (str(made.id), "paused")
    for _ in range(2):
        assert (await data(database_url, "resume", str(made.id)))["status"] == "running"
    await data(database_url, "cancel", str(made.id))
    for word in ("pause", "resume"):
        assert isinstance((await call(database_url, word, str(made.id))).exception, CampaignNotPausable)
    acts = await pool.fetch("SELECT after FROM audit_log WHERE action = 'campaign.moved' ORDER BY id")
    assert [msgspec.json.decode(row["after"])["status"] for row in acts] == ["paused", "running", "canceled"]


async def test_watch_until_it_is_done(pool: Pool, database_url: str) -> None:
    actor = await organization(pool)
    made = await create(pool, actor, 3)
    # Separate processes: two commands in one process would write into each other's output.
    watching = [
        await forks.start(
            *("campaign", "watch", str(made.id), *how),
            environment={**os.environ, "HELIOGRAPH_DATABASE_URL": database_url},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        for how in ((), ("--json",), ("-o", "tsv"))
    ]
    stager = Stager(pool)
    while await stager.round():
        continue
    await pool.execute("UPDATE messages SET status = 'delivered'")
    await pool.execute("UPDATE campaign_chunks SET count_at = now()")
    async with pool.acquire() as conn, conn.transaction():
        await counting.count_due(conn)
    (_, drawn), (records, _), (lines, _) = await asyncio.wait_for(
        asyncio.gather(*(one.communicate() for one in watching)), 120
    )
    assert b"100% of 3  completed  delivered 3" in drawn
    last = msgspec.json.decode(records.splitlines()[-1])
    assert (last["status"], last["counts"]["delivered"]) == ("completed", 3)
    id, _, status, _, *counts = lines.decode().splitlines()[-1].split("\t")[:7]
    assert (id, status, counts) == (str(made.id), "completed", ["3", "0", "3"])
