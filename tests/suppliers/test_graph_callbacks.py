"""Callbacks of the Graph API simulator: bytes, signatures, batches, duplicates, and retries."""

from __future__ import annotations

import hashlib
import hmac
import json
import random

import pytest
from pywa.utils import webhook_updates_validator

from heliograph.simulators.graph.callbacks.outbox import GAPS
from heliograph.simulators.graph.callbacks.webhooks import Item, encode, envelope, sign
from heliograph.simulators.graph.simulator import App, Number, Setup, SimulatedAccount, Token
from tests.suppliers.graph_peer import NUMBER, SECRET, TOKEN, USER, WABA, graph, hooked, signed, until


async def test_the_bytes_are_metas() -> None:
    async with graph() as (simulator, _, hook):
        simulator.inbound(USER, "D’accord – 1/2 😀 \u007f", name='Amal "B" \\ Bén')
        await until(lambda: hook.callbacks)
        body, headers = hook.callbacks[0]
        assert body.isascii()
        assert rb'"D\u2019accord \u2013 1\/2 \ud83d\ude00 ' in body
        assert rb'"Amal \"B\" \\ B\u00e9n"' in body
        assert json.loads(body)["entry"][0]["changes"][0]["value"]["messages"][0]["text"]["body"].endswith("😀 \x7f")
        assert signed(body, headers["x-hub-signature-256"])
        header = headers["x-hub-signature-256"]
        assert webhook_updates_validator(app_secret=SECRET, request_body=body, x_hub_signature=header)
        again = json.dumps(json.loads(body)).encode()
        assert not signed(again, header)  # verifying a re-serialised body fails
        decoy = headers["x-hub-signature"]
        assert decoy == "sha1=" + hmac.new(SECRET.encode(), body, hashlib.sha1).hexdigest()
        assert headers["content-type"] == "application/json"


@pytest.mark.parametrize("how", ["wrong_secret", "missing", "upper", "truncated", "unprefixed", "tampered"])
async def test_bad_signatures(how: str) -> None:
    async with graph(signature=how) as (simulator, _, hook):
        simulator.inbound(USER, "é/")
        await until(lambda: hook.callbacks)
        body, headers = hook.callbacks[0]
        assert not signed(body, headers.get("x-hub-signature-256"))
        assert ("x-hub-signature-256" in headers) == (how != "missing")
        simulator.configure(signature="good")
        simulator.inbound(USER, "é/")
        await until(lambda: len(hook.callbacks) == 2)
        body, headers = hook.callbacks[1]
        assert signed(body, headers["x-hub-signature-256"])


def test_a_tampered_body_differs_in_one_byte() -> None:
    body = encode({"a": "é/" * 50})
    changed, headers = sign(body, SECRET, "tampered")
    assert sum(one != other for one, other in zip(body, changed, strict=True)) == 1
    assert signed(body, headers["X-Hub-Signature-256"])
    assert not signed(changed, headers["X-Hub-Signature-256"])


async def test_batches_mix_numbers_accounts_and_kinds() -> None:
    other = {"app": "660000000000001"}
    async with graph(batch=1000) as (simulator, client, hook):
        simulator.add_account("900", **other)
        simulator.add_number("901", "+33155000001", account="900")
        simulator.add_number("902", "+33155000002", account="900")
        simulator.outbox().hold()
        wamids = [await client.remind(f"+21261{n:07}") for n in range(101, 121)]
        for n in range(20):
            simulator.inbound(f"+21262{n:07}", number=("901", "902")[n % 2])
        simulator.template_event("login_code", "PAUSED")
        simulator.alarm(130429)
        await simulator.advance(1)
        assert hook.callbacks == []
        waiting = simulator.outbox().waiting
        simulator.outbox().release()
        await simulator.settle()
        (body,) = hook.bodies
        assert simulator.attempts[-1].items == waiting
        assert {entry["id"] for entry in body["entry"]} == {WABA, "900"}
        assert {one["id"] for one in hook.items("statuses")} == set(wamids)
        assert len(hook.items("messages")) == 20
        assert [one["code"] for one in hook.items("errors")] == [130429]
        owners = {value["metadata"]["phone_number_id"]: value for value in hook.values if "messages" in value}
        assert {one["from"] for one in owners["901"]["messages"]} == {f"21262{n:07}" for n in range(20) if n % 2 == 0}
        for value in hook.values:
            if "contacts" in value:
                names = [one["wa_id"] for one in value["contacts"]]
                assert len(names) == len(set(names))
        (event,) = (value for value in hook.values if value.get("event") == "PAUSED")
        assert "metadata" not in event


async def test_a_thousand_in_one_with_a_poisoned_one() -> None:
    async with graph(batch=1000) as (simulator, _, hook):
        simulator.outbox().hold()
        for n in range(999):
            simulator.inject({"id": f"wamid.{n}", "status": "delivered", "timestamp": "1795162401"})
        simulator.inject({"id": 7, "status": ["?"], "timestamp": "soon"})
        simulator.outbox().release()
        await simulator.settle()
        assert len(hook.callbacks) == 1
        assert len(hook.items("statuses")) == 1000


@pytest.mark.parametrize("grouping", ["joined", "single", "mixed"])
def test_every_grouping_holds_the_same(grouping: str) -> None:
    numbers = [{"display_phone_number": "1", "phone_number_id": str(n)} for n in range(3)]
    items = [
        Item(
            f"a{n % 2}",
            "messages",
            ("statuses", "messages", "errors")[n % 5 % 3],
            {"id": n},
            numbers[n % 3],
            {"wa_id": str(n)},
        )
        for n in range(40)
    ] + [Item("a0", "account_update", "", {"event": n}, time=n) for n in range(3)]
    body = envelope(items, grouping, random.Random(3))  # type: ignore[arg-type]
    changes = [(entry["id"], change) for entry in body["entry"] for change in entry["changes"]]
    found = [
        (account, kind, one["id"])
        for account, change in changes
        for kind in ("statuses", "messages", "errors")
        for one in change["value"].get(kind, [])
    ]
    assert sorted(found) == sorted((one.account, one.kind, one.payload["id"]) for one in items if one.kind)
    assert sum(change["field"] == "account_update" for _, change in changes) == 3
    assert all(entry["time"] == entry["changes"][0]["value"]["event"] for entry in body["entry"] if "time" in entry)
    for _, change in changes:
        if "contacts" in change["value"]:
            kinds = [one for kind in ("statuses", "messages", "errors") for one in change["value"].get(kind, [])]
            assert {one["wa_id"] for one in change["value"]["contacts"]} == {str(one["id"]) for one in kinds}


async def test_what_is_not_taken_comes_again_at_once_and_in_other_company() -> None:
    async with graph(batch=10) as (simulator, _, hook):
        simulator.freeze()
        hook.answers = [500]
        simulator.outbox().hold()
        wamids = {simulator.inbound(USER, str(n)) for n in range(10)}
        simulator.outbox().release()
        await simulator.advance(0)
        first, *others = hook.bodies
        assert len(others) > 1
        assert {one["id"] for one in hook.items("messages")[10:]} == wamids
        assert simulator.counters.items_again == 10
        assert simulator.counters.items_taken == 10
        assert simulator.outbox().waiting == 0
        assert [attempt.status for attempt in simulator.attempts] == [500] + [200] * len(others)
        assert others[0] != first


async def test_a_receiver_that_is_down_for_days() -> None:
    """The whole schedule passes at once, by moving the clock."""
    async with graph(rebatch=False) as (simulator, _, hook):
        simulator.freeze()
        started = simulator.clock.now()
        hook.answers = [503] * 1000
        simulator.inbound(USER)
        await simulator.advance(8 * 86_400)
        gaps = [round(attempt.at - started) for attempt in simulator.attempts]
        expected, at = [0], 0
        while at <= 7 * 86_400:
            at += GAPS[min(len(expected) - 1, len(GAPS) - 1)]
            expected.append(at)
        assert gaps == expected
        assert simulator.counters.items_lost == 1
        assert simulator.outbox().waiting == 0

        hook.answers = [503] * 5
        hook.callbacks.clear()
        simulator.inbound(USER, "again")
        await simulator.advance(86_400)
        assert len(hook.callbacks) == 6
        assert len({body for body, _ in hook.callbacks}) == 1
        assert simulator.counters.items_lost == 1


async def test_a_receiver_that_does_not_answer_is_tried_again() -> None:
    async with graph() as (simulator, _, hook):
        simulator.freeze()
        hook.silent = True
        simulator.configure(webhook_timeout=0.2)
        simulator.inbound(USER)
        await until(lambda: simulator.attempts and simulator.attempts[0].error)
        assert simulator.attempts[0].status == 0
        hook.silent = False
        simulator.configure(webhook_timeout=20.0)
        await simulator.advance(60)
        assert simulator.attempts[-1].status == 200
        assert simulator.counters.items_taken == 1


async def test_nothing_leaves_before_the_handshake() -> None:
    async with graph() as (simulator, _, hook):
        hook.verify_token = "another"
        simulator.set_webhook(hook.url)
        simulator.inbound(USER)
        await until(lambda: hook.challenges > 3)
        assert hook.callbacks == []
        assert simulator.outbox().handshake_problem == "answered 403, not the challenge"
        hook.verify_token = "graph-verify-token"
        await until(lambda: len(hook.callbacks) == 1)
        assert simulator.outbox().passed


async def test_duplicates_and_repeats() -> None:
    async with graph(duplicates=1.0) as (simulator, _, hook):
        simulator.inbound(USER)
        await until(lambda: len(hook.callbacks) == 2)
        assert hook.callbacks[0][0] == hook.callbacks[1][0]
        assert [attempt.repeated for attempt in simulator.attempts] == [False, True]

        assert await simulator.outbox().repeat(50, at_once=50) == [200] * 50
        assert len({body for body, _ in hook.callbacks}) == 1
        assert len(hook.callbacks) == 52
        assert simulator.counters.items_taken == 1
    async with graph(duplicate_items=1.0, batch=2) as (simulator, _, hook):
        simulator.outbox().hold()
        for n in range(10):
            simulator.inbound(USER, str(n))
        simulator.outbox().release()
        await simulator.settle()
        ids = [one["id"] for one in hook.items("messages")]
        assert len(ids) == 20
        assert len(set(ids)) == 10


async def test_shuffled_and_at_once() -> None:
    async with graph(batch=1, concurrency=8, shuffle=True) as (simulator, _, hook):
        simulator.outbox().hold()
        order = [simulator.inbound(USER, str(n)) for n in range(64)]
        simulator.outbox().release()
        await simulator.settle()
        came = [one["id"] for one in hook.items("messages")]
        assert sorted(came) == sorted(order)
        assert came != order
        assert 1 <= hook.most_at_once <= 8


async def test_two_apps_never_cross() -> None:
    """Callbacks of two accounts of one app come in one stream; those of another app's account do not."""
    setup = Setup(
        apps=[
            App(id="1", secret="s1", verify_token="graph-verify-token"),
            App(id="2", secret="s2", verify_token="graph-verify-token"),
        ],
        accounts=[
            SimulatedAccount(id=WABA, subscribed=["1"]),
            SimulatedAccount(id="8", subscribed=["1"]),
            SimulatedAccount(id="9", subscribed=["2"]),
        ],
        numbers=[
            Number(id=NUMBER, account=WABA, digits="15550001000"),
            Number(id="91", account="9", digits="33155000001"),
        ],
        tokens=[Token(token=TOKEN, app="1", accounts=[WABA, "8"])],
    )
    async with hooked() as second, graph(setup, webhook_url="") as (simulator, client, _), hooked() as first:
        simulator.set_webhook(first.url, app="1")
        simulator.set_webhook(second.url, app="2")
        simulator.inbound(USER, "to the first", number=NUMBER)
        simulator.inbound(USER, "to the second", number="91")
        await until(lambda: first.callbacks and second.callbacks)
        assert [one["text"]["body"] for one in first.items("messages")] == ["to the first"]
        assert [one["text"]["body"] for one in second.items("messages")] == ["to the second"]
        body, headers = second.callbacks[0]
        assert signed(body, headers["x-hub-signature-256"], "s2")
        assert not signed(body, headers["x-hub-signature-256"], "s1")
        assert (await client.send(number="91", type="text", text={"body": "?"}))[1]["error"]["error_subcode"] == 33
        assert (await client.call("DELETE", f"/{WABA}/subscribed_apps"))[0] == 200
        simulator.inbound(USER, "to nobody", number=NUMBER)
        await simulator.settle()
        assert len(first.callbacks) == 1


async def test_what_was_not_called_back_survives_a_restart() -> None:
    async with graph() as (simulator, client, hook):
        hook.silent = True
        in_the_air = simulator.inbound(USER)
        await until(lambda: simulator.attempts)
        simulator.outbox().hold()
        held = simulator.inbound(USER)
        port = simulator.port
        await simulator.stop()
        hook.silent = False
        await simulator.start()
        assert (simulator.port, simulator.outbox().waiting) == (port, 2)
        simulator.outbox().release()
        await until(lambda: {one["id"] for one in hook.items("messages")} == {in_the_air, held})
        await until(lambda: simulator.outbox().waiting == 0)
        assert (await client.get(f"/{NUMBER}"))[0] == 200
