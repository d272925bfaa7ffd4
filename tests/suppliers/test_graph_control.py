"""The control plane of the Graph API simulator, over HTTP as another process would use it."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.simulators.graph.control import __doc__ as told
from tests.suppliers.graph_peer import NUMBER, TOKEN, USER, WABA, Client, graph, reminder, until

TEMPLATE: dict[str, Any] = {"type": "template", "template": reminder()}


async def do(client: Client, path: str, method: str = "POST", **body: Any) -> Any:
    status, answer = await client.call(method, f"/_sim/{path}", body if method == "POST" else None, headers={})
    assert status == 200, answer
    return answer


async def test_a_life_by_remote_control() -> None:
    async with graph(status_delay=1.0) as (_, client, hook):
        await do(client, "clock", speed=0)
        await do(client, "scripts", recipient=USER, script=["sent", "delivered", "failed:131026"])
        wamid = await client.remind(biz_opaque_callback_data="ours-1")
        assert (await do(client, f"users/{USER[1:]}", "GET"))["reached"] == 0
        clock = await do(client, "clock", advance=2)
        assert clock["speed"] == 0
        assert hook.statuses(wamid) == ["sent", "delivered"]
        await do(client, "clock", advance=1)
        assert hook.items("statuses")[-1]["errors"][0]["code"] == 131026
        user = await do(client, f"users/{USER[1:]}", "GET")
        assert (user["accepted"], user["reached"]) == (1, 1)
        assert user["messages"][0]["statuses"] == ["sent", "delivered", "failed"]
        assert [one["id"] for one in await do(client, f"messages?to={USER[1:]}", "GET")] == [wamid]
        await do(client, "statuses", message=wamid, status="read")
        await until(lambda: hook.statuses(wamid)[-1] == "read")

        requests = await do(client, "requests?last=1", "GET")
        assert requests[0]["body"]["biz_opaque_callback_data"] == "ours-1"
        assert requests[0]["headers"]["authorization"] == "Bearer [redacted]"
        assert TOKEN not in str(await do(client, "requests", "GET"))
        callbacks = await do(client, "callbacks", "GET")
        assert callbacks[0]["body"]["object"] == "whatsapp_business_account"
        assert callbacks[0]["status"] == 200
        counters = await do(client, "counters", "GET")
        assert (counters["accepted"], counters["reached"], counters["statuses"]) == (1, 1, 4)
        summary = await do(client, "", "GET")
        assert summary["numbers"] == {NUMBER: "15550001000"}
        assert summary["doubled"] == {}
        assert next(iter(summary["webhooks"].values()))["passed"]


async def test_everything_else_it_can_be_told() -> None:
    async with graph() as (simulator, client, hook):
        wamid = (await do(client, "inbound", sender=USER, text="Bonjour"))["id"]
        await until(lambda: [one["id"] for one in hook.items("messages")] == [wamid])
        await do(client, "accounts", id="900", currency="MAD")
        await do(client, "numbers", id="901", digits="+33 1 55 00 00 01", account="900")
        await do(client, "numbers", id="901", quality_rating="RED")
        assert simulator.world.numbers["901"].quality_rating == "RED"
        await do(client, "accounts", id="900", refusal=131031)
        assert await client.code(number="901", **TEMPLATE) == 131031
        body = {"name": "hello", "language": "en", "components": [{"type": "BODY", "text": "Hello there"}]}
        made = await do(client, "templates", **body)
        assert (made["status"], made["account"]) == ("APPROVED", WABA)
        await do(client, "templates", id=made["id"], status="PAUSED")
        assert await client.code(type="template", template={"name": "hello", "language": {"code": "en"}}) == 132015
        await do(client, "events/template", template="hello", event="APPROVED")
        await do(client, "events/number", event="THROUGHPUT_UPGRADE")
        await do(client, "events/account", event="capability", value=2000)
        await do(client, "inject", payload={"id": "poison"}, kind="statuses")
        await do(client, "inject", payloads=[{"id": "poison"}] * 3)
        await do(client, "windows", user=USER, seconds=0)
        await until(lambda: len(hook.items("statuses")) == 4 and simulator.outbox().waiting == 0)
        assert {one["id"] for one in hook.items("statuses")} == {"poison"}
        await do(client, "clock", advance=61)

        await do(client, "tokens", token=TOKEN, state="expired")
        assert await client.code(**TEMPLATE) == 190
        await do(client, "tokens", token=TOKEN, state="valid")
        await do(client, "faults", kind="json", code=131016, status=503)
        assert await client.code(**TEMPLATE) == 131016
        await do(client, "faults", "DELETE")
        assert await client.code(**TEMPLATE) == 0
        await do(client, "options", window_refusal="sync", throughput=1)
        assert simulator.options.window_refusal == "sync"
        await do(client, "apps", id="2", secret="s", verify_token="v")
        await do(client, "webhook", url=hook.url, verify_token="v", app="2")
        assert not simulator.outbox("2").passed

        await do(client, "callbacks", do="settle")
        seen = len(hook.callbacks)
        await do(client, "callbacks", do="hold")
        simulator.inbound(USER)
        simulator.inbound(USER)
        assert (await do(client, "callbacks", do="release"))["waiting"] == 2
        await do(client, "callbacks", do="settle")
        assert len(hook.callbacks) == seen + 1
        assert (await do(client, "callbacks", do="repeat", times=3))["statuses"] == [200] * 3
        assert (await do(client, "callbacks", do="handshake"))["passed"]
        await do(client, "reset")
        assert list(simulator.world.accounts) == [WABA]
        assert (await do(client, "counters", "GET"))["accepted"] == 0


async def test_refused_connections_come_back() -> None:
    async with graph(webhook_url="") as (simulator, client, _):
        await do(client, "connections", refuse=0.1)
        await until(lambda: not simulator._http.is_listening)
        await until(lambda: simulator._http.is_listening)
        assert await client.code(**TEMPLATE) == 0


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "nowhere", {}),
        ("GET", "reset", None),
        ("POST", "scripts", {"recipient": "1", "script": "unheard of"}),
        ("POST", "scripts", {"script": "happy"}),
        ("POST", "faults", {"kind": "earthquake"}),
        ("POST", "inbound", {"sender": USER, "kind": "song"}),
        ("POST", "inbound", {"sender": USER, "colour": "red"}),
        ("POST", "inbound", {}),
        ("POST", "events/template", {"template": "unheard_of", "event": "PAUSED"}),
        ("POST", "statuses", {"message": "wamid.404", "status": "read"}),
        ("POST", "options", {"batch": 0}),
        ("POST", "options", {"colour": "red"}),
        ("POST", "tokens", {"token": TOKEN, "colour": "red"}),
        ("POST", "numbers", {"id": NUMBER, "colour": "red"}),
        ("POST", "callbacks", {"do": "dance"}),
        ("POST", "clock", {"advance": "a while"}),
        ("POST", "reset", ["?"]),
    ],
)
async def test_what_it_does_not_understand(method: str, path: str, body: Any) -> None:
    async with graph(webhook_url="") as (_, client, _):
        status, answer = await client.call(method, f"/_sim/{path}", body)
        assert status in (400, 404)
        assert answer["error"]


async def test_every_path_is_told() -> None:
    async with graph(webhook_url="") as (simulator, _, _):
        for _, path in simulator._control._routes:
            assert all(part in (told or "") for part in path.split("/")), path
