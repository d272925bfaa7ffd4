"""Sends to the Graph API simulator: what it accepts, what it refuses, and the order of its checks."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from heliograph.simulators.clock import VirtualClock
from heliograph.simulators.graph.operations.errors import CODES, GraphError
from heliograph.simulators.graph.operations.send import send
from heliograph.simulators.graph.simulator import quick
from heliograph.simulators.graph.state import World
from tests.suppliers.graph_peer import NUMBER, TOKEN, USER, WABA, graph, reminder, signed, until

TWO = [{"type": "text", "text": "Amal"}, {"type": "text", "text": "jeudi 14h"}]


async def test_a_template_is_sent_delivered_and_read() -> None:
    async with graph() as (simulator, client, hook):
        wamid = await client.remind(biz_opaque_callback_data="ours-1")
        await until(lambda: len(hook.statuses(wamid)) == 3)
        assert hook.statuses(wamid) == ["sent", "delivered", "read"]
        assert all(signed(body, headers["x-hub-signature-256"]) for body, headers in hook.callbacks)
        sent = hook.items("statuses")[0]
        assert sent["biz_opaque_callback_data"] == "ours-1"
        assert sent["pricing"] == {"billable": True, "pricing_model": "PMP", "type": "regular", "category": "utility"}
        (message,) = simulator.sends_to(USER)
        assert (message.id, message.statuses) == (wamid, ["sent", "delivered", "read"])
        assert simulator.doubled == {}


async def test_it_looks_in_metas_order() -> None:
    """Everything is wrong at first, and is corrected step by step: each complaint is the next one in order."""
    async with graph(throughput=1.0) as (simulator, client, _):
        simulator.set_number(registered=False)
        simulator.set_template("appointment_reminder", status="PAUSED")
        body: dict[str, Any] = {"template": reminder("one")}
        seen = []

        async def next_code(to: str | None = None, number: str = "404") -> int:
            seen.append(await client.code(to, number=number, **body))
            return seen[-1]

        client.headers = {"authorization": "Bearer nonsense"}
        assert await next_code() == 190
        simulator.set_token("narrow", scopes=["whatsapp_business_management"])
        client.headers = {"authorization": "Bearer narrow"}
        assert await next_code() == 10
        client.headers = {"authorization": f"Bearer {TOKEN}"}
        assert await next_code() == 100  # no such number
        assert await next_code(number=NUMBER) == 133010
        simulator.set_number(registered=True, refusal=131045)
        assert await next_code(number=NUMBER) == 131045
        simulator.set_number(refusal=0)
        body["type"] = "carrier_pigeon"
        assert await next_code(number=NUMBER) == 131051
        body["type"] = "template"
        assert await next_code(number=NUMBER) == 100  # no recipient
        assert await next_code("+15550001000", number=NUMBER) == 131021
        simulator.freeze()
        simulator.configure(throughput=1.0)
        simulator.set_template("login_code", status="DISABLED")
        assert await next_code(USER, number=NUMBER) == 132015  # used up the only message of this second
        assert await next_code(USER, number=NUMBER) == 130429
        simulator.configure(throughput=0.0)
        body["template"] = reminder("one", name="login_code")
        assert await next_code(USER, number=NUMBER) == 132016
        body["template"] = reminder("one", language={"code": "en_US"})
        assert await next_code(USER, number=NUMBER) == 132001
        simulator.set_template("appointment_reminder", status="APPROVED")
        body["template"] = reminder("one")
        assert await next_code(USER, number=NUMBER) == 132000
        body["template"] = reminder("one", "two")
        assert await next_code("+88810000000008", number=NUMBER) == 131009  # the recipient's script
        assert await next_code(USER, number=NUMBER) == 0
        assert simulator.counters.accepted == 1
        assert simulator.counters.refused == len(seen) - 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"messaging_product": None}, 100),
        ({"messaging_product": "sms"}, 100),
        ({"to": None}, 100),
        ({"to": "somebody"}, 131009),
        ({"to": "+12"}, 131009),
        ({"type": 7}, 131009),
        ({"type": "template", "template": None}, 131008),
        ({"type": "text", "text": "hello"}, 131009),
        ({"type": "text", "text": {}}, 131008),
        ({"type": "text", "text": {"body": "x" * 4097}}, 100),
        ({"type": "template", "template": {"name": "x"}}, 131008),
        ({"type": "image", "image": {}}, 131008),
        ({"type": "interactive", "interactive": {"type": "list"}}, 131008),
        ({"context": {"id": "x"}}, 131009),
        ({"recipient_type": "crowd"}, 131009),
        ({"biz_opaque_callback_data": "x" * 513}, 100),
        ({"template": reminder(components={"type": "body"})}, 131009),
        ({"template": reminder(components=[{"type": "chorus"}])}, 100),
        ({"status": "read", "message_id": "x"}, 131009),
        # Bodies that Meta accepts although its examples look different.
        ({"to": "+212 (600) 000-017"}, 0),
        ({"to": "212600000017"}, 0),
        ({"type": "TEMPLATE"}, 0),
        ({"recipient_type": None}, 0),
        ({"something": "else"}, 0),
        ({"template": reminder(components=[{"type": "BODY", "parameters": TWO}])}, 0),
        ({"template": reminder(language={"code": "en", "policy": "deterministic"})}, 0),
    ],
)
async def test_the_shape_of_a_send(body: dict[str, Any], code: int) -> None:
    async with graph(webhook_url="") as (_, client, _):
        made = {"to": USER, "type": "template", "template": reminder(), "messaging_product": "whatsapp"} | body
        made = {key: value for key, value in made.items() if value is not None}
        _, answer = await client.call("POST", f"/{NUMBER}/messages", made)
        assert answer.get("error", {}).get("code", 0) == code


SHIPPED_HEADER = {"type": "header", "parameters": [{"type": "text", "text": "CMD-4471"}]}
SHIPPED_BODY = {"type": "body", "parameters": TWO}
SHIPPED_BUTTON = {"type": "button", "sub_type": "url", "index": "0", "parameters": [{"type": "text", "text": "t/1"}]}
CODE = [{"type": "text", "text": "481920"}]
NAMED = [
    {"type": "text", "parameter_name": name, "text": text}
    for name, text in (("day", "Thursday"), ("customer_name", "Amal"), ("parcel", "P-1"))
]


def body_of(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "body", "parameters": [{"type": "text", "text": one} for one in texts]}]


@pytest.mark.parametrize(
    ("name", "language", "components", "code"),
    [
        ("order_shipped", "fr", [SHIPPED_HEADER, SHIPPED_BODY, SHIPPED_BUTTON], 0),
        ("order_shipped", "fr", [SHIPPED_HEADER, SHIPPED_BODY, {**SHIPPED_BUTTON, "sub_type": "URL", "index": 0}], 0),
        ("order_shipped", "fr", [SHIPPED_BODY, SHIPPED_BUTTON], 132000),
        ("order_shipped", "fr", [SHIPPED_HEADER, SHIPPED_BODY], 131008),
        ("order_shipped", "fr_MA", [SHIPPED_HEADER, SHIPPED_BODY, SHIPPED_BUTTON], 132001),
        ("login_code", "en", [{"type": "body", "parameters": CODE}, {**SHIPPED_BUTTON, "parameters": CODE}], 0),
        ("login_code", "en", [{"type": "body", "parameters": CODE}], 131008),
        ("delivery_update", "en", [{"type": "body", "parameters": NAMED}], 0),
        ("delivery_update", "en", [{"type": "body", "parameters": NAMED[:2]}], 132000),
        ("delivery_update", "en", body_of("a", "b", "c"), 100),
        (
            "delivery_update",
            "en",
            [{"type": "body", "parameters": [*NAMED[:2], NAMED[2] | {"parameter_name": "x"}]}],
            -1,
        ),
        ("appointment_reminder", "en", [{"type": "body", "parameters": NAMED[:2]}], -1),
        ("appointment_reminder", "en", body_of("a"), 132000),
        ("appointment_reminder", "en", body_of("a", "b", "c"), 132000),
        ("appointment_reminder", "en", body_of("a", "line\nfeed"), -1),
        ("appointment_reminder", "en", body_of("a", "tab\tbed"), -1),
        ("appointment_reminder", "en", body_of("a", "five     spaces"), -1),
        ("appointment_reminder", "en", body_of("a", "four    spaces"), 0),
        ("appointment_reminder", "en", body_of("a", ""), 131008),
        ("appointment_reminder", "en", [{"type": "body", "parameters": [{"type": "image"}] * 2}], -1),
        ("appointment_reminder", "en", body_of("a", "x" * 1000), 132005),
        ("appointment_reminder", "en", None, 132000),
    ],
)
async def test_what_a_template_is_filled_with(name: str, language: str, components: Any, code: int) -> None:
    """-1: the complaint about a parameter's kind, which has one code up to v22 and another one from v23 on."""
    async with graph(webhook_url="") as (_, client, _):
        template = {"name": name, "language": {"code": language}, "components": components}
        for version, mismatch in (("v22.0", 132012), ("v23.0", 132018)):
            client.version = version
            assert await client.code(type="template", template=template) == (mismatch if code == -1 else code)


FLOW = {"type": "button", "sub_type": "flow", "index": "1",
        "parameters": [{"type": "action", "action": {"flow_token": "unused"}}]}  # fmt: skip
CATALOG = {"type": "button", "sub_type": "CATALOG", "index": 0}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([CATALOG, FLOW], 0),
        ([{**CATALOG, "parameters": [{"type": "action", "action": {"thumbnail_product_retailer_id": "7"}}]}, FLOW], 0),
        ([CATALOG], 131008),
        ([FLOW], 131008),
        (None, 131008),
        ([CATALOG, {**FLOW, "parameters": []}], 131008),
        ([CATALOG, {**FLOW, "sub_type": "url"}], 132018),
        ([CATALOG, {**FLOW, "parameters": [{"type": "text", "text": "t"}]}], 132018),
    ],
)
async def test_buttons_that_open_something_have_to_be_named(components: Any, code: int) -> None:
    buttons = [
        {"type": "CATALOG", "text": "See"},
        {"type": "FLOW", "text": "Book"},
        {"type": "QUICK_REPLY", "text": "q"},
    ]
    parts = [{"type": "BODY", "text": "Hello!"}, {"type": "BUTTONS", "buttons": buttons}]
    async with graph(webhook_url="") as (simulator, client, _):
        simulator.add_template({"name": "with_buttons", "language": "en", "components": parts})
        template = {"name": "with_buttons", "language": {"code": "en"}, "components": components}
        assert await client.code(type="template", template=template) == code


async def test_whatever_comes_is_answered_in_metas_shape() -> None:
    """No JSON at all makes the simulator fail."""
    world = World(quick(webhook_url=""), None, VirtualClock())
    number, account = world.numbers[NUMBER], world.accounts[WABA]
    chance = random.Random(5)
    strange: list[Any] = [
        None,
        0,
        -1.5,
        True,
        "",
        "x",
        "template",
        [],
        [1],
        {},
        {"code": 1},
        {"type": "body"},
        [{}],
        [[]],
    ]
    good = {"messaging_product": "whatsapp", "to": USER, "type": "template", "template": reminder()}
    codes = []
    for _ in range(3_000):
        body = copy.deepcopy(good)
        for _ in range(chance.randrange(1, 4)):
            spoil(body, chance, strange)
        try:
            send(world, number, account, 25.0, body)
        except GraphError as error:
            codes.append(error.code)
    assert len(codes) > 1_000
    assert set(codes) <= CODES.keys()


def spoil(value: Any, chance: random.Random, strange: list[Any]) -> None:
    """Replace something at a random place within."""
    while True:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        if isinstance(value[key], dict | list) and chance.random() < 0.7:
            value = value[key]
            continue
        value[key] = copy.deepcopy(chance.choice(strange))
        return


async def test_text_needs_an_open_window() -> None:
    async with graph() as (simulator, client, hook):
        status, answer = await client.send(type="text", text={"body": "Bonjour"})
        assert status == 200  # accepted, and failed later
        wamid = answer["messages"][0]["id"]
        await until(lambda: hook.statuses(wamid) == ["failed"])
        (failed,) = hook.items("statuses")
        assert failed["errors"][0]["code"] == 131047
        assert "pricing" not in failed

        simulator.freeze()
        simulator.configure(window_refusal="sync")
        assert await client.code(type="text", text={"body": "Bonjour"}) == 131047
        simulator.inbound(USER, "Oui")
        assert await client.code(type="text", text={"body": "Bonjour"}) == 0
        await simulator.advance(86_399)
        assert await client.code(type="text", text={"body": "Bonjour"}) == 0
        await simulator.advance(2)
        assert await client.code(type="text", text={"body": "Bonjour"}) == 131047
        simulator.inbound(USER, "👍", kind="reaction", quotes=wamid)  # opens nothing
        simulator.inbound(USER, "hier", ago=90_000)
        assert await client.code(type="text", text={"body": "Bonjour"}) == 131047
        simulator.inbound(USER, "tomorrow", ago=-90_000)
        await simulator.advance(86_402)
        assert await client.code(type="text", text={"body": "Bonjour"}) == 131047  # the future counts as now
        simulator.open_window(USER, seconds=60.0)
        assert await client.code(type="text", text={"body": "Bonjour"}) == 0
        simulator.open_window(USER, seconds=0.0)
        assert await client.code(type="text", text={"body": "Bonjour"}) == 131047


async def test_limits() -> None:
    async with graph(webhook_url="", pair_seconds=6.0, pair_burst=45, throughput=0.0) as (simulator, client, _):
        simulator.freeze()
        template = {"type": "template", "template": reminder()}
        assert [await client.code(**template) for _ in range(46)] == [0] * 45 + [131056]
        assert await client.code("+212600000018", **template) == 0
        await simulator.advance(6)
        assert [await client.code(**template) for _ in range(2)] == [0, 131056]

        simulator.configure(pair_seconds=0.0, throughput=80.0)
        assert [await client.code(**template) for _ in range(81)] == [0] * 80 + [130429]
        await simulator.advance(0.5)
        for _ in range(10):
            simulator.inbound(USER)  # in and out together
        codes = [await client.code(**template) for _ in range(31)]
        assert codes == [0] * 30 + [130429]

        simulator.configure(throughput=0.0, tier=4)
        assert [await client.code(f"+21260000002{n}", **template) for n in range(5)] == [0, 0, 0, 0, 131048]
        assert await client.code("+212600000020", **template) == 0  # one of the four
        simulator.inbound("+212600000030")
        assert await client.code("+212600000030", **template) == 0  # within the window nobody is counted
        simulator.configure(tier_breach="silent")
        assert await client.code("+212600000029", **template) == 0
        await simulator.advance(86_401)
        assert simulator.sends_to("+212600000029") == []
        assert await client.code("+212600000028", **template) == 0
        assert len(simulator.sends_to("+212600000028")) == 1


async def test_a_throughput_upgrade_takes_a_minute() -> None:
    async with graph(throughput=1.0) as (simulator, client, hook):
        simulator.freeze()
        simulator.number_event("THROUGHPUT_UPGRADE")
        assert await client.code(type="template", template=reminder()) == 131057
        await simulator.advance(61)
        assert [await client.code(type="template", template=reminder()) for _ in range(13)] == [0] * 12 + [130429]
        (value,) = (one for one in hook.values if one.get("event") == "THROUGHPUT_UPGRADE")
        assert value["max_daily_conversations_per_business"] == "TIER_UNLIMITED"
        _, number = await client.get(f"/{NUMBER}?fields=throughput")
        assert number["throughput"] == {"level": "HIGH"}


async def test_numbers_that_meta_rewrites() -> None:
    async with graph(webhook_url="") as (simulator, client, _):
        for to, wa_id in (("+5511987654321", "551187654321"), ("+525512345678", "5215512345678"), (USER, USER[1:])):
            _, answer = await client.send(to, type="template", template=reminder())
            assert answer["contacts"][0]["wa_id"] == wa_id
            assert answer["contacts"][0]["input"] == to
            assert answer["messages"][0]["message_status"] == "accepted"
            assert len(simulator.accepted_for(to)) == 1
        _, answer = await client.send("5550002000", type="template", template=reminder())
        assert answer["contacts"][0]["wa_id"] == "15550002000"  # no +: the sender's calling code


async def test_a_user_without_a_phone() -> None:
    async with graph() as (simulator, client, hook):
        simulator.inbound(user_id="MA.13490000000000000001", username="amal", text="Salut")
        await until(lambda: hook.items("messages"))
        (message,), (contact,) = hook.items("messages"), hook.items("contacts")
        assert "from" not in message
        assert message["from_user_id"] == contact["user_id"] == "MA.13490000000000000001"
        status, answer = await client.send(
            None, recipient="MA.13490000000000000001", type="text", text={"body": "Bonjour"}
        )
        assert (status, answer["contacts"][0]["user_id"]) == (200, "MA.13490000000000000001")
        assert "wa_id" not in answer["contacts"][0]
        otp = {"name": "login_code", "language": {"code": "en"}}
        otp["components"] = [{"type": "body", "parameters": CODE}, {**SHIPPED_BUTTON, "parameters": CODE}]
        assert await client.code(None, recipient="MA.13490000000000000001", type="template", template=otp) == 131062
        assert await client.code(None, recipient="MA.404", type="text", text={"body": "?"}) == 131009
        await until(lambda: hook.statuses(answer["messages"][0]["id"]) == ["sent", "delivered", "read"])
        assert "recipient_id" not in hook.items("statuses")[0]


async def test_prices() -> None:
    async with graph() as (simulator, client, hook):

        async def price(**body: Any) -> tuple[Any, ...]:
            _, answer = await client.send(**body)
            wamid = answer["messages"][0]["id"]
            await until(lambda: len(hook.statuses(wamid)) == 3)
            (priced,) = (one for one in hook.items("statuses") if one["id"] == wamid and "pricing" in one)
            pricing = priced["pricing"]
            return priced["status"], pricing["type"], pricing["category"], pricing["billable"]

        template, text = {"type": "template", "template": reminder()}, {"type": "text", "text": {"body": "Oui"}}
        assert await price(**template) == ("sent", "regular", "utility", True)
        simulator.configure(pricing_on="delivered")
        simulator.inbound(USER)
        assert await price(**template) == ("delivered", "regular", "utility", True)
        assert await price(**text) == ("delivered", "free_customer_service", "service", False)
        simulator.configure(pricing_rules="2025-07")
        assert await price(**template) == ("delivered", "free_customer_service", "utility", False)
        simulator.inbound(USER, referral=True)
        assert await price(**text) == ("delivered", "free_entry_point", "referral_conversion", False)
        await simulator.advance(48 * 3600)
        assert await price(**template) == ("delivered", "free_entry_point", "referral_conversion", False)
        await simulator.advance(25 * 3600)
        assert await price(**template) == ("delivered", "regular", "utility", True)
        simulator.configure(pricing_rules="2026-10")
        simulator.inbound(USER)
        simulator.world.served[NUMBER, int(simulator.clock.now() // 2_629_746)] = 1_000
        assert await price(**text) == ("delivered", "regular", "service", True)
