"""Reads from the Graph API simulator, tokens, templates created by API, and events that agree with the reads."""

from __future__ import annotations

from typing import Any

from heliograph.simulators.graph.simulator import App, Number, Setup, SimulatedAccount, Template, Token
from tests.suppliers.graph_peer import NUMBER, TOKEN, USER, WABA, Client, graph, reminder, until


def use(client: Client, token: str) -> None:
    client.headers = {"authorization": f"Bearer {token}"}


async def error(client: Client, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, int, int]:
    """HTTP status, code and subcode of a response."""
    status, answer = await client.call(method, path, body, **options)
    found = answer["error"]
    assert found["type"] == ("GraphMethodException" if found.get("error_subcode") == 33 else "OAuthException")
    assert found["fbtrace_id"]
    return status, found["code"], found.get("error_subcode", 0)


async def test_tokens() -> None:
    async with graph(webhook_url="") as (simulator, client, _):
        assert await error(client, "GET", f"/{NUMBER}", headers={}) == (403, 200, 0)
        assert await error(client, "POST", f"/{NUMBER}/messages", {}, headers={}) == (401, 190, 0)
        for header in ("Bearer", "Basic abc", "Bearer  ", "nonsense"):
            assert await error(client, "GET", f"/{NUMBER}", headers={"authorization": header}) == (401, 190, 0)
        simulator.set_token(TOKEN, state="expired")
        assert await error(client, "GET", f"/{NUMBER}") == (401, 190, 463)
        assert (await client.send(type="template", template=reminder()))[1]["error"]["error_subcode"] == 463
        simulator.set_token(TOKEN, state="revoked")
        assert await error(client, "GET", f"/{NUMBER}") == (401, 190, 458)
        simulator.set_token(TOKEN, state="valid", expires_at=int(simulator.clock.now()) + 60)
        assert (await client.get(f"/{NUMBER}"))[0] == 200
        await simulator.advance(61)
        assert await error(client, "GET", f"/{NUMBER}") == (401, 190, 463)

        simulator.set_token("sender", scopes=["whatsapp_business_messaging"])
        use(client, "sender")
        assert await error(client, "GET", f"/{WABA}/message_templates") == (403, 200, 0)
        assert await client.code(type="template", template=reminder()) == 0
        for denial in (10, 200, 131005, 3):
            simulator.set_token("reader", scopes=["whatsapp_business_management"], denial=denial)
            use(client, "reader")
            assert await client.code(type="template", template=reminder()) == denial
        simulator.set_token("elsewhere", accounts=["1"])
        use(client, "elsewhere")
        for path in (f"/{NUMBER}", f"/{WABA}", f"/{WABA}/phone_numbers", "/1200000000000017"):
            assert await error(client, "GET", path) == (400, 100, 33)
        assert await error(client, "POST", f"/{NUMBER}/messages", {}) == (400, 100, 33)
        # A token in the query works, as with Meta, and is not recorded.
        assert (await client.get(f"/{NUMBER}?access_token=reader", headers={}))[0] == 200
        assert "reader" not in str(simulator.requests)
        assert "sender" not in str([one.headers for one in simulator.requests])


async def test_debug_token() -> None:
    async with graph(webhook_url="") as (simulator, client, _):
        client.headers = {"authorization": "Bearer 660000000000001|graph-app-secret"}

        async def data(token: str) -> dict[str, Any]:
            status, answer = await client.get(f"/debug_token?input_token={token}")
            assert status == 200
            return answer["data"]

        good = await data(TOKEN)
        assert good["is_valid"]
        assert good["expires_at"] == 0
        assert set(good["scopes"]) == {"whatsapp_business_management", "whatsapp_business_messaging"}
        assert "granular_scopes" not in good
        simulator.set_token(TOKEN, accounts=[WABA], expires_at=2_000_000_000)
        narrow = await data(TOKEN)
        assert narrow["expires_at"] == 2_000_000_000
        assert {"scope": "whatsapp_business_messaging", "target_ids": [WABA]} in narrow["granular_scopes"]
        simulator.set_token(TOKEN, state="expired")
        gone = await data(TOKEN)
        assert (gone["is_valid"], gone["error"]["code"], gone["error"]["subcode"]) == (False, 190, 463)
        assert not (await data("unknown"))["is_valid"]
        assert await error(client, "GET", "/debug_token") == (400, 100, 0)
        client.headers = {"authorization": "Bearer 660000000000001|wrong"}
        assert await error(client, "GET", "/debug_token?input_token=x") == (401, 190, 0)


async def test_unknown_things() -> None:
    async with graph(webhook_url="") as (_, client, _):
        for unknown in ("/404404404404404404", "/555000111222404", "/404"):  # Meta's ids have 15 digits or more
            assert await error(client, "GET", unknown) == (400, 100, 33)
            _, answer = await client.get(unknown)
            assert answer["error"]["type"] == "GraphMethodException"
            assert answer["error"]["message"].startswith("Unsupported get request. Object with ID")
        assert await error(client, "POST", "/555000111222404/messages", {}) == (400, 100, 33)
        assert await error(client, "POST", f"/{WABA}/messages", {"messaging_product": "whatsapp"}) == (400, 100, 33)
        assert await error(client, "GET", f"/{NUMBER}/messages") == (400, 100, 33)
        assert await error(client, "GET", f"/{WABA}/flows_of_time") == (400, 2500, 0)
        assert await error(client, "GET", "/a/b/c/d") == (400, 2500, 0)
        url = client.graph.base_url
        async with client.session.get(f"{url}/{NUMBER}", headers=client.headers) as answer:
            assert (await answer.json())["error"]["code"] == 2500
        async with client.session.post(
            f"{url}/v25.0/{NUMBER}/messages", data=b'{"to": ', headers=client.headers
        ) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (400, 100)
        async with client.session.get(f"{url}/v99.1/{NUMBER}", headers=client.headers) as answer:
            assert answer.status == 200
            assert answer.headers["x-fb-trace-id"]


async def test_fields_and_pages() -> None:
    async with graph(webhook_url="") as (simulator, client, _):
        assert set((await client.get(f"/{NUMBER}"))[1]) == {
            "id",
            "display_phone_number",
            "verified_name",
            "quality_rating",
        }
        fields = (
            "status,throughput,whatsapp_business_manager_messaging_limit,health_status,webhook_configuration,unheard"
        )
        _, number = await client.get(f"/{NUMBER}?fields={fields}")
        assert set(number) == {*fields.split(",")[:-1], "id"}
        assert number["status"] == "CONNECTED"
        assert number["health_status"]["can_send_message"] == "AVAILABLE"
        assert [one["entity_type"] for one in number["health_status"]["entities"]] == [
            "PHONE_NUMBER",
            "WABA",
            "BUSINESS",
            "APP",
        ]
        _, account = await client.get(f"/{WABA}?fields=name,currency,account_review_status")
        assert account == {"name": "Demo", "currency": "EUR", "account_review_status": "APPROVED", "id": WABA}

        for n in range(30):
            body = {"name": f"many_{n:02}", "language": "en", "components": [{"type": "BODY", "text": "Hello there"}]}
            simulator.add_template(body | {"category": "UTILITY", "status": "PENDING" if n % 2 else "APPROVED"})
        seen: list[str] = []
        path: str | None = f"/{WABA}/message_templates?fields=name,status&limit=10&summary=total_count"
        pages = 0
        while path:
            status, page = await client.get(path)
            assert (status, page["summary"]["total_count"]) == (200, 34)
            seen += [one["name"] for one in page["data"]]
            assert all(set(one) == {"name", "status", "id"} for one in page["data"])
            following = page["paging"].get("next")
            path = following.removeprefix(f"{client.graph.base_url}/v25.0") if following else None
            pages += 1
        assert (len(seen), len(set(seen)), pages) == (34, 34, 4)
        _, back = await client.get(f"/{WABA}/message_templates?limit=10&before={page['paging']['cursors']['before']}")
        assert [one["name"] for one in back["data"]] == seen[20:30]
        for query, count in (
            ("", 25),
            ("&limit=100000", 34),
            ("&limit=100&status=PENDING", 15),
            ("&limit=100&name=many_0", 10),
            ("&limit=100&category=AUTHENTICATION", 1),
            ("&limit=100&language=fr", 1),
            ("&limit=100&quality_score=RED,YELLOW", 0),
        ):
            _, page = await client.get(f"/{WABA}/message_templates?fields=name{query}")
            assert len(page["data"]) == count, query
        assert await error(client, "GET", f"/{WABA}/message_templates?limit=x") == (400, 100, 0)
        assert await error(client, "GET", f"/{WABA}/message_templates?after=%21%21") == (400, 100, 0)
        _, template = await client.get("/1200000000000017?fields=name,quality_score,parameter_format,components")
        assert template["quality_score"]["score"] == "GREEN"
        assert template["parameter_format"] == "POSITIONAL"
        assert [one["type"] for one in template["components"]] == ["HEADER", "BODY", "FOOTER", "BUTTONS"]


async def test_the_calls_an_hour() -> None:
    async with graph(webhook_url="", management_calls=4) as (simulator, client, _):
        simulator.freeze()  # within one hour of the clock
        for count in range(1, 5):
            async with client.session.get(
                f"{simulator.base_url}/v25.0/{WABA}/phone_numbers", headers=client.headers
            ) as answer:
                assert answer.status == 200
                assert f'"call_count":{25 * count}' in answer.headers["x-business-use-case-usage"]
        assert await error(client, "GET", f"/{NUMBER}") == (429, 80008, 0)
        assert await client.code(type="template", template=reminder()) == 0  # sends do not count
        await simulator.advance(3600)
        assert (await client.get(f"/{NUMBER}"))[0] == 200


async def test_templates_made_by_api() -> None:
    async with graph(review_delay=60.0) as (simulator, client, hook):
        path = f"/{WABA}/message_templates"
        body = {
            "name": "parcel_waits",
            "language": "fr",
            "category": "utility",
            "components": [{"type": "BODY", "text": "Bonjour {{1}}, votre colis attend."}],
        }
        _, made = await client.call("POST", path, body)
        assert (made["status"], made["category"]) == ("PENDING", "UTILITY")
        template = reminder("Amal", name="parcel_waits", language={"code": "fr"})
        assert await client.code(type="template", template=template) == 132001
        assert await error(client, "POST", path, body) == (400, 100, 2388024)
        for spoiled, subcode in (
            ({"name": "Parcel Waits"}, 0),
            ({"category": "GOSSIP"}, 0),
            ({"components": []}, 0),
            ({"components": "none"}, 0),
            ({"components": [{"type": "BODY", "text": "x" * 1025}]}, 2388040),
            ({"components": [{"type": "BODY", "text": "Bonjour {{1}}"}]}, 2388299),
            ({"components": [{"type": "BODY", "text": "Bonjour {{1}} {{2}} voila."}]}, 2388072),
        ):
            assert await error(client, "POST", path, {**body, "name": "other", **spoiled}) == (400, 100, subcode)
        await simulator.advance(61)
        assert await client.code(type="template", template=template) == 0
        (event,) = (value for value in hook.values if value.get("event") == "APPROVED")
        assert event["message_template_id"] == int(made["id"])
        assert hook.bodies[0]["entry"][0]["time"] > 0

        _, edited = await client.call("POST", f"/{made['id']}", {"components": body["components"]})
        assert edited["success"]
        assert await client.code(type="template", template=template) == 132001  # pending again
        assert await error(client, "POST", f"/{made['id']}", {}) == (400, 100, 2388025)
        await simulator.advance(61)
        assert await error(client, "POST", f"/{made['id']}", {}) == (400, 100, 2388026)
        simulator.template_event("parcel_waits", "PAUSED")
        assert await client.code(type="template", template=template) == 132015
        assert (await client.call("POST", f"/{made['id']}/unpause"))[1] == {"success": True}
        assert (await client.call("POST", f"/{made['id']}/unpause"))[1]["success"] is False
        assert await client.code(type="template", template=template) == 0

        assert await error(client, "DELETE", path) == (400, 100, 0)
        assert await error(client, "DELETE", f"{path}?name=unheard_of") == (400, 100, 2593002)
        assert (await client.call("DELETE", f"{path}?name=parcel_waits"))[1] == {"success": True}
        assert await error(client, "GET", f"/{made['id']}") == (400, 100, 33)
        assert await error(client, "POST", path, body) == (400, 100, 2388023)
        await simulator.advance(31 * 86_400)
        assert (await client.call("POST", path, body))[0] == 200

        otp = [
            {"type": "BODY", "add_security_recommendation": True},
            {"type": "FOOTER", "code_expiration_minutes": 5},
            {"type": "BUTTONS", "buttons": [{"type": "OTP", "otp_type": "COPY_CODE", "text": "Copier"}]},
        ]
        _, made = await client.call(
            "POST", path, {"name": "codes", "language": "fr", "category": "AUTHENTICATION", "components": otp}
        )
        _, stored = await client.get(f"/{made['id']}?fields=components")
        assert stored["components"][0]["text"].startswith("*{{1}}*")
        assert stored["components"][2]["buttons"][0]["otp_type"] == "COPY_CODE"


async def test_events_and_gets_agree() -> None:
    async with graph() as (simulator, client, hook):

        async def template() -> tuple[Any, ...]:
            _, found = await client.get(
                "/1200000000000018?fields=status,category,previous_category,correct_category,quality_score"
            )
            category = found.get("previous_category"), found["category"], found.get("correct_category")
            return found["status"], category, found["quality_score"]["score"]

        assert await template() == ("APPROVED", (None, "UTILITY", None), "GREEN")
        for event, status, code in (
            ("PAUSED", "PAUSED", 132015),
            ("APPROVED", "APPROVED", 0),
            ("FLAGGED", "APPROVED", 0),
            ("DISABLED", "DISABLED", 132016),
            ("REINSTATED", "APPROVED", 0),
            ("REJECTED", "REJECTED", 132001),
            ("PENDING_DELETION", "PENDING_DELETION", 132001),
            ("LOCKED", "LOCKED", 132001),
            ("UNARCHIVED", "APPROVED", 0),
        ):
            simulator.template_event("appointment_reminder", event)
            assert (await template())[0] == status
            assert await client.code(type="template", template=reminder()) == code
        simulator.template_event("appointment_reminder", "quality", value="RED")
        simulator.template_event("appointment_reminder", "category_notice", value="MARKETING")
        assert await template() == ("APPROVED", (None, "UTILITY", "MARKETING"), "RED")
        simulator.template_event("appointment_reminder", "category", value="MARKETING")
        assert await template() == ("APPROVED", ("UTILITY", "MARKETING", None), "RED")
        simulator.template_event("appointment_reminder", "DELETED", true=False)  # an event without the change
        assert (await template())[0] == "APPROVED"
        wamid = await client.remind()
        await until(lambda: len(hook.statuses(wamid)) == 3)
        priced = next(one for one in hook.items("statuses") if one["id"] == wamid)
        assert priced["pricing"]["category"] == "marketing"

        for event, value, code, health in (
            ("DISABLED_UPDATE", "SCHEDULE_FOR_DISABLE", 0, "AVAILABLE"),
            ("DISABLED_UPDATE", "DISABLE", 131031, "BLOCKED"),
            ("DISABLED_UPDATE", "REINSTATE", 0, "AVAILABLE"),
            ("ACCOUNT_RESTRICTION", "RESTRICTED_BIZ_INITIATED_MESSAGING", 131031, "LIMITED"),
        ):
            simulator.account_event(event, value=value, **({"seconds": 600.0} if "RESTRICTION" in event else {}))
            assert await client.code(type="template", template=reminder()) == code
            _, number = await client.get(f"/{NUMBER}?fields=health_status")
            assert number["health_status"]["can_send_message"] == health
        await simulator.advance(601)
        assert await client.code(type="template", template=reminder()) == 0

        simulator.number_event("quality", value="RED")
        simulator.account_event("capability", value=10_000)
        _, number = await client.get(f"/{NUMBER}?fields=quality_rating,whatsapp_business_manager_messaging_limit")
        assert number["quality_rating"] == "RED"
        assert number["whatsapp_business_manager_messaging_limit"] == "TIER_10K"
        simulator.number_event("name", value="DECLINED")
        assert await client.code(type="template", template=reminder()) == 131037


async def test_gets_that_lag() -> None:
    async with graph(lag=30.0) as (simulator, client, _):

        async def status() -> str:
            return (await client.get("/1200000000000018?fields=status"))[1]["status"]

        simulator.freeze()
        simulator.template_event("appointment_reminder", "PAUSED")
        assert await client.code(type="template", template=reminder()) == 132015
        assert await status() == "APPROVED"
        await simulator.advance(20)
        simulator.template_event("appointment_reminder", "DISABLED")
        await simulator.advance(15)
        assert await status() == "PAUSED"
        await simulator.advance(20)
        assert await status() == "DISABLED"


async def test_numbers_in_every_state() -> None:
    async with graph(webhook_url="") as (simulator, client, _):
        template: dict[str, Any] = {"type": "template", "template": reminder()}
        for fields, code in (
            ({"registered": False}, 133010),
            ({"status": "PENDING"}, 133010),
            ({"status": "BANNED"}, 131031),
            ({"status": "DELETED"}, 33),
            ({"name_status": "DECLINED"}, 131037),
            ({"refusal": 131045}, 131045),
            ({"refusal": 131048}, 131048),
            ({"refusal": 131042}, 131042),
            ({"status": "FLAGGED"}, 0),
            ({"code_verification_status": "EXPIRED"}, 0),
        ):
            number = simulator.set_number()
            before = {name: getattr(number, name) for name in fields}
            simulator.set_number(**fields)
            assert await client.code(**template) == code
            simulator.set_number(**before)
        assert (await client.call("POST", f"/{NUMBER}/deregister", {}))[1] == {"success": True}
        assert await client.code(**template) == 133010
        body = {"messaging_product": "whatsapp", "pin": "123456"}
        assert (await client.call("POST", f"/{NUMBER}/register", body))[1] == {"success": True}
        assert await client.code(**template) == 0


async def test_subscribed_apps_and_subscriptions() -> None:
    async with graph() as (simulator, client, hook):
        path = f"/{WABA}/subscribed_apps"
        assert (await client.get(path))[1]["data"][0]["whatsapp_business_api_data"]["id"] == "660000000000001"
        assert (await client.call("DELETE", path))[1] == {"success": True}
        assert (await client.get(path))[1] == {"data": []}
        simulator.inbound(USER)
        await simulator.settle()
        assert hook.callbacks == []
        assert (await client.call("POST", path))[1] == {"success": True}
        simulator.inbound(USER)
        await until(lambda: hook.callbacks)
        challenges = hook.challenges
        use(client, "660000000000001|graph-app-secret")
        body = {"object": "whatsapp_business_account", "callback_url": hook.url, "verify_token": "graph-verify-token"}
        assert (await client.call("POST", "/660000000000001/subscriptions", body))[1] == {"success": True}
        await until(lambda: hook.challenges > challenges)
        assert (await client.get("/660000000000001/subscriptions"))[1]["data"][0]["callback_url"] == hook.url


async def test_media_and_apps() -> None:
    async with graph(webhook_url="") as (simulator, client, _):
        simulator.inbound(USER, "Look", kind="image")
        (sent,) = simulator.world.media
        _, medium = await client.get(f"/{sent}")
        async with client.session.get(medium["url"], headers=client.headers) as answer:
            assert (answer.status, answer.content_type) == (200, "image/jpeg")
            assert await answer.read()
        async with client.session.get(medium["url"]) as answer:
            assert answer.status == 403
        assert (await client.get("/660000000000001"))[1]["name"] == "Simulated app"
        simulator.inbound(USER)
        assert await client.code(type="image", image={"id": medium["id"]}) == 0
        assert simulator.sends_to(USER)[0].type == "image"


async def test_a_setup_of_its_own() -> None:
    setup = Setup(
        apps=[App(id="1", secret="s", verify_token="v")],
        accounts=[SimulatedAccount(id="2", subscribed=["1"])],
        numbers=[Number(id="3", account="2", digits="33155000001")],
        templates=[Template(name="bonjour", language="fr", components=[{"type": "BODY", "text": "Bonjour"}])],
        tokens=[Token(token="t", app="1")],
    )
    async with graph(setup, webhook_url="") as (simulator, client, _):
        use(client, "t")
        status, _ = await client.send(
            number="3", type="template", template={"name": "bonjour", "language": {"code": "fr"}}
        )
        assert status == 200
        simulator.set_template("bonjour", status="PAUSED")
        assert setup.templates[0].status == "APPROVED"  # a simulator's changes do not reach its setup
