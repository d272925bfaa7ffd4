"""Outcomes of messages in the Graph API simulator: scripts by recipient, faults in transit, seeded randomness."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from heliograph.cli.running import simulate
from heliograph.simulators.graph import simulator as graph_module
from heliograph.simulators.graph.simulator import MAGIC, SCRIPTS, GraphSimulator, Script, Step
from tests.suppliers.graph_peer import NUMBER, USER, graph, reminder, until

TEMPLATE: dict[str, Any] = {"type": "template", "template": reminder()}


def to(ending: str) -> str:
    return f"+8881000000{ending}"


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("0000", ["sent", "delivered", "read"]),
        ("0001", ["failed 131026"]),
        ("0002", ["sent", "read"]),
        ("0003", ["sent"]),
        ("0004", []),
        ("0005", ["sent", "delivered", "read"]),
        ("0006", ["sent", "sent", "delivered", "delivered", "read", "read"]),
        ("9001", ["sent", "failed 131026"]),
        ("9002", ["sent", "failed 131026", "delivered"]),
        ("9003", ["sent", "delivered", "failed 131026"]),
        ("9004", ["sent", "delivered"]),
        ("9005", ["read", "delivered", "sent"]),
        ("9006", ["sent", "delivered", "read"]),
        ("9007", ["failed 132015"]),
        ("9008", []),
        ("9009", ["failed 131049"]),
        ("9010", ["failed 130472"]),
        ("9011", ["failed 131042"]),
        ("9012", ["failed 131047"]),
        ("9013", ["sent", "delivered", "read"]),
        ("9020", ["sent", "delivered", "read"]),
    ],
)
async def test_the_statuses_of_an_ending(ending: str, expected: list[str]) -> None:
    async with graph(status_delay=1.0) as (simulator, client, hook):
        simulator.freeze()
        status, answer = await client.send(to(ending), **TEMPLATE)
        assert status == 200
        assert hook.callbacks == []
        await simulator.advance(120)
        seen = [
            one["status"] + (f" {one['errors'][0]['code']}" if "errors" in one else "")
            for one in hook.items("statuses")
        ]
        assert seen == expected
        reached = bool({"delivered", "read"} & set(expected))
        assert len(simulator.sends_to(to(ending))) == reached
        states = {"9006": "held_for_quality_assessment", "9007": "held_for_quality_assessment", "9008": "paused"}
        assert answer["messages"][0]["message_status"] == states.get(ending, "accepted")
        if ending == "0005":
            assert simulator.attempts[0].at - simulator.requests[0].at == pytest.approx(61, abs=0.1)


@pytest.mark.parametrize(
    ("ending", "expected"),
    [("0008", (400, 131009)), ("0009", (429, 131056)), ("0010", (500, 131000)), ("9023", (400, 130403))],
)
async def test_endings_that_are_refused(ending: str, expected: tuple[int, int]) -> None:
    async with graph(webhook_url="") as (simulator, client, _):
        for _ in range(2):
            status, answer = await client.send(to(ending), **TEMPLATE)
            assert (status, answer["error"]["code"]) == expected
        assert simulator.accepted_for(to(ending)) == []
        status, answer = await client.send(to("9021"), **TEMPLATE)
        assert (status, answer["error"]["code"]) == (429, 130429)
        assert (await client.send(to("9021"), **TEMPLATE))[0] == 200


@pytest.mark.parametrize(("ending", "sent"), [("0011", 1), ("0012", 0), ("0013", 1), ("9022", 0)])
async def test_answers_that_do_not_come(ending: str, sent: int) -> None:
    async with graph() as (simulator, client, hook):
        await unanswered(simulator, client.send(to(ending), biz_opaque_callback_data="ours-1", **TEMPLATE))
        await until(lambda: len(hook.items("statuses")) == 3 * sent)
        assert {one["biz_opaque_callback_data"] for one in hook.items("statuses")} == ({"ours-1"} if sent else set())
        assert len(simulator.sends_to(to(ending))) == sent
        assert simulator.counters.unanswered == 1
        assert simulator.requests[-1].status == 0
        assert (await client.get(f"/{NUMBER}"))[0] == 200


async def unanswered(simulator: GraphSimulator, call: Coroutine[Any, Any, Any]) -> None:
    """The request arrives, and no response is sent: the connection closes, or nothing happens until the client gives
    up."""
    before = simulator.counters.requests
    task = asyncio.create_task(call)
    await until(lambda: simulator.counters.requests > before)
    done, _ = await asyncio.wait({task}, timeout=0.2)
    if done:
        with pytest.raises(aiohttp.ClientError):
            task.result()
    else:
        task.cancel()
        await asyncio.wait({task})


async def test_a_status_that_overtakes_its_answer() -> None:
    async with graph() as (_, client, hook):
        await client.send(to("0007"), **TEMPLATE)
        assert [one["status"] for one in hook.items("statuses")][:1] == ["sent"]
        await until(lambda: len(hook.items("statuses")) == 3)


async def test_the_shapes_of_statuses() -> None:
    async with graph() as (simulator, client, hook):

        async def statuses(ending: str) -> list[dict[str, Any]]:
            hook.callbacks.clear()
            await client.send(to(ending), **TEMPLATE)
            await until(lambda: len(hook.items("statuses")) == 3)
            return hook.items("statuses")

        assert ["pricing" in one for one in await statuses("9013")] == [False, True, False]
        assert ["pricing" in one for one in await statuses("9014")] == [True, True, False]
        assert ["pricing" in one for one in await statuses("9015")] == [False, False, False]
        old = await statuses("9016")
        assert old[0]["pricing"] == {"billable": True, "pricing_model": "CBP", "category": "utility"}
        assert old[0]["conversation"]["origin"] == {"type": "utility"}
        assert "expiration_timestamp" in old[0]["conversation"]
        assert "expiration_timestamp" not in old[1]["conversation"]
        await statuses("9017")
        assert all("contacts" not in value for value in hook.values)
        assert all("conversation" not in one for one in await statuses("0000"))
        simulator.configure(webhook_version="v23.0", contacts=False)
        assert all("conversation" in one for one in await statuses("0000"))
        assert all("contacts" not in value for value in hook.values)


async def test_scripts_are_chosen_by_whole_number_then_ending_then_magic() -> None:
    async with graph(webhook_url="") as (simulator, client, _):

        async def fate(recipient: str) -> list[str]:
            await client.send(recipient, **TEMPLATE)
            return simulator.accepted_for(recipient)[-1].statuses

        assert await fate(to("0003")) == ["sent"]
        simulator.script("0003", ["sent", "delivered"])
        simulator.script("17", Script(steps=(Step("failed", 131049),)))
        simulator.script(USER, "silent", times=2)
        assert await fate(to("0003")) == ["sent", "delivered"]
        assert await fate(to("5517")) == ["failed"]
        assert [await fate(USER) for _ in range(3)] == [[], [], ["sent", "delivered", "read"]]
        simulator.script("", "sent_only")
        assert await fate(to("5555")) == ["sent"]
        simulator.script("0003", None)
        assert await fate(to("0003")) == ["sent"]
        simulator.configure(magic="")
        assert await fate(to("0001")) == ["sent", "delivered", "read"]
        with pytest.raises(ValueError, match="no script"):
            simulator.script("1", "unheard of")


async def test_every_ending_has_a_script_and_is_in_the_help() -> None:
    assert set(MAGIC.values()) <= set(SCRIPTS)
    told = graph_module.__doc__ or ""
    assert [end for end in MAGIC if end not in told and end not in ("9010", "9011")] == []
    page = (Path(__file__).parents[2] / "docs" / "whatsapp-accounts.md").read_text()
    helped = simulate.app.registered_commands[1].callback.__doc__ or ""
    assert [end for end in MAGIC if end not in page or end not in helped] == []


@pytest.mark.parametrize(
    ("fault", "status", "said", "sent"),
    [
        ({"kind": "json", "status": 429, "code": 80007}, 429, "(#80007)", 0),
        ({"kind": "json", "status": 500, "code": 131000}, 500, "is_transient", 0),
        ({"kind": "html", "status": 502}, 502, "<!DOCTYPE html>", 0),
        ({"kind": "empty", "status": 503}, 503, "", 0),
        ({"kind": "drip", "interval": 0.001}, 200, "wamid.", 1),
        ({"kind": "drop"}, None, "", 1),
        ({"kind": "drop", "lost": True}, None, "", 0),
        ({"kind": "hang"}, None, "", 1),
        ({"kind": "hang", "lost": True}, None, "", 0),
    ],
)
async def test_faults(fault: dict[str, Any], status: int | None, said: str, sent: int) -> None:
    async with graph() as (simulator, client, hook):
        simulator.fault(**fault, times=1)
        url = f"{simulator.base_url}/v25.0/{NUMBER}/messages"
        body = {"messaging_product": "whatsapp", "to": USER, **TEMPLATE}
        if status is None:
            await unanswered(simulator, client.send(**TEMPLATE))
        else:
            async with client.session.post(url, json=body, headers=client.headers) as answer:
                assert answer.status == status
                text = await answer.text()
                assert said in text
                assert bool(text) == bool(said)
        assert len(simulator.accepted_for(USER)) == sent
        await until(lambda: len(hook.items("statuses")) == 3 * sent)
        assert simulator.requests[-1].fault == fault["kind"]
        assert await client.code(**TEMPLATE) == 0  # it hit once
        simulator.fault("json", on="management", code=80008, status=429)
        assert await client.code(**TEMPLATE) == 0
        assert (await client.get(f"/{NUMBER}"))[0] == 429
        simulator.clear_faults()
        assert (await client.get(f"/{NUMBER}"))[0] == 200


async def test_a_refused_connection() -> None:
    async with graph(webhook_url="") as (simulator, client, _):
        assert await client.code(**TEMPLATE) == 0
        simulator.refuse_connections()
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.send(**TEMPLATE)
        await simulator.accept_connections()
        assert await client.code(**TEMPLATE) == 0
        assert simulator.counters.requests == 2


async def test_latency_is_log_normal() -> None:
    async with graph(webhook_url="", latency_ms=120.0, p99_ms=1000.0) as (simulator, client, _):
        drawn = sorted(simulator._api._latency() for _ in range(20_000))
        assert drawn[10_000] == pytest.approx(0.120, rel=0.05)
        assert drawn[19_800] == pytest.approx(1.0, rel=0.15)
        simulator.configure(latency_ms=30.0, p99_ms=30.0)
        started = time.monotonic()
        await asyncio.gather(*(client.code(**TEMPLATE) for _ in range(20)))
        assert time.monotonic() - started >= 0.03
        with pytest.raises(ValueError, match="p99_ms"):
            simulator.configure(latency_ms=120.0)


async def test_the_seed_decides() -> None:
    """The same requests lead to the same ids, refusals and callbacks; another seed leads to others."""

    async def life(seed: int) -> tuple[Any, ...]:
        options = {"seed": seed, "batch": 4, "shuffle": True, "duplicate_items": 0.3, "grouping": "mixed"}
        async with graph(**options, concurrency=1, status_delay=1.0) as (simulator, client, hook):
            simulator.freeze()
            simulator.clock.reset(start=1_795_000_000.0, speed=0)
            simulator.fault("json", share=0.3)
            simulator.outbox().hold()
            answers = [await client.send(f"+21265{n:07}", **TEMPLATE) for n in range(200, 220)]
            await simulator.advance(10)
            simulator.outbox().release()
            await simulator.settle()
            return answers, [body for body, _ in hook.callbacks]

    first, second, other = await life(7), await life(7), await life(8)
    assert first == second
    assert first != other
    assert {status for status, _ in first[0]} == {200, 503}


async def test_a_reset_forgets_everything_but_the_receiver() -> None:
    async with graph(status_delay=1.0) as (simulator, client, hook):
        ids = [await client.remind(biz_opaque_callback_data="same") for _ in range(2)]
        assert simulator.doubled == {"same": 2}
        assert simulator.counters.doubled == 1
        simulator.set_token("other")
        simulator.fault("empty")
        simulator.script(USER, "silent")
        simulator.set_number(refusal=131031)
        simulator.configure(window_refusal="sync")
        simulator.reset()
        assert simulator.counters.accepted == 0
        assert simulator.options.window_refusal == "async"
        assert simulator.clock.waiting == 0
        assert await client.remind() == ids[0]  # the seed begins anew
        client.headers = {"authorization": "Bearer other"}
        assert await client.code(**TEMPLATE) == 190
        await simulator.advance(10)
        await until(lambda: len(hook.items("statuses")) == 3)


async def test_statuses_by_hand() -> None:
    async with graph() as (simulator, client, hook):
        simulator.script("", "silent")
        wamid = await client.remind()
        for status in ("delivered", "failed", "read", "played"):
            simulator.status(wamid, status, code=131026 if status == "failed" else 0)
        await until(lambda: hook.statuses(wamid) == ["delivered", "failed", "read", "played"])
        with pytest.raises(KeyError):
            simulator.status("wamid.404", "read")


def test_options_that_cannot_be() -> None:
    for options in ({"batch": 0}, {"batch": 1001}, {"concurrency": 65}, {"duplicates": 1.1}):
        with pytest.raises(ValueError):
            GraphSimulator(graph_module.quick(**options))
    with pytest.raises(ValueError, match="no account"):
        GraphSimulator(
            graph_module.quick(), graph_module.Setup(numbers=[graph_module.Number(id="1", account="2", digits="3")])
        )
