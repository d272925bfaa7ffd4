"""WhatsApp with real processes: a web process, a worker, PostgreSQL and a simulated Graph API that calls back."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.whatsapp.mirror import accounts, apps
from tests.cloud import CODE, NAMED, PRICES, REMINDER, SHIPPED, Cloud, cloud, received_objects, subscribe
from tests.load import Client
from tests.processes import Installation, Program, installation, until, until_true
from tests.rules.whatsapp_factories import check_wallets

pytestmark = pytest.mark.lasts(5)

USER = "+258841230000"
FAST = {"HELIOGRAPH_LEASE_SECONDS": "2", "HELIOGRAPH_WHATSAPP_UNCERTAIN_GRACE_SECONDS": "3"}
#: For tests in which a stalled worker must not lose what it sends to the grace period.
PATIENT = {"HELIOGRAPH_LEASE_SECONDS": "20", "HELIOGRAPH_WHATSAPP_UNCERTAIN_GRACE_SECONDS": "8"}


class Scene:
    """Everything that takes part."""

    def __init__(self, made: Installation, cloud: Cloud, client: Client, worker: Program, secret: str) -> None:
        self.made, self.cloud, self.client, self.worker, self.secret = made, cloud, client, worker, secret
        self.graph = cloud.graph

    async def post(self, to: str, content: dict[str, Any] | str = REMINDER, **fields: Any) -> tuple[int, Any]:
        """Status and body of a send's response."""
        return await self.client.ask("POST", "/whatsapp/messages", json=self.cloud.body(to, content, **fields))

    async def send(self, to: str, content: dict[str, Any] | str = REMINDER, **fields: Any) -> str:
        """The id of an accepted message."""
        status, answer = await self.post(to, content, **fields)
        assert (status, answer.get("status")) == (202, "accepted"), answer
        return str(answer["message"]["id"])

    async def code(self, to: str, content: dict[str, Any] | str = REMINDER) -> tuple[int, str | None]:
        """Status and error code of a send's response."""
        status, answer = await self.post(to, content)
        return status, answer["error"]["code"] if status >= 400 else None

    async def becomes(self, id: str, status: str) -> dict[str, Any]:
        """The message as shown by the API, once it is in this state."""
        found: dict[str, Any] = {}

        async def is_so() -> bool:
            _, answer = await self.client.ask("GET", f"/whatsapp/messages/{id}")
            found.update(answer["message"])
            return bool(found["status"] == status)

        try:
            await until_true(is_so, within=120)
        except TimeoutError:
            raise AssertionError(f"not {status}: {found}") from None
        return found

    def received_objects(self, kind: str) -> list[dict[str, Any]]:
        """The objects in correctly signed events of a kind that the receiver got, without repetitions."""
        return received_objects(self.made, kind, self.secret)

    def ids(self, kind: str) -> list[str]:
        return sorted(one["id"] for one in self.received_objects(kind))


@contextlib.asynccontextmanager
async def scene(url: str, place: Path, settings: dict[str, str] = FAST, **options: Any) -> AsyncIterator[Scene]:
    """A web process and a worker, running and connected; asserts at the end that they logged no failures."""
    async with installation(url, place, **settings) as made, cloud(made, **options) as sky:
        secret = await subscribe(sky)
        await made.api()
        worker = await made.worker()
        await sky.ready()
        async with Client(made.base_url, made.key) as client:
            at = Scene(made, sky, client, worker, secret)
            yield at
        assert await at.worker.stop() == 0
        await check_wallets(sky.pool, [made.actor.organization_id])
        assert not made.complaints, made.stderr


async def test_templates_of_every_kind_are_sent_delivered_and_read(database_url: str, tmp_path: Path) -> None:
    async with scene(database_url, tmp_path) as at:
        contents = {"shipped": SHIPPED, "named": NAMED, "code": CODE}
        ids = {name: await at.send(USER, one, clientReference=name) for name, one in contents.items()}
        for name, id in ids.items():
            shown = await at.becomes(id, "read")
            assert shown["clientReference"] == name
            assert shown["acceptedAt"] <= shown["sentAt"] <= shown["deliveredAt"] <= shown["readAt"]
        for kind in ("message.sent", "message.delivered", "message.read"):
            await until(lambda kind=kind: len(at.received_objects(kind)) == 3)
            assert at.ids(kind) == sorted(ids.values())
            assert {one["channel"] for one in at.received_objects(kind)} == {"whatsapp"}
        assert at.received_objects("message.failed") == []

        sent = {name: at.cloud.message(id).content["components"] for name, id in ids.items()}
        assert [[one["text"] for one in part["parameters"]] for part in sent["shipped"]] == [
            ["CMD-4471"],
            ["Amélie", "jeudi"],
            ["track/4471"],
        ]
        (body,) = sent["named"]
        assert {one["parameter_name"]: one["text"] for one in body["parameters"]} == {
            "customer_name": "Ana",
            "parcel": "P-17",
            "day": "Thursday",
        }
        assert [[one["text"] for one in part["parameters"]] for part in sent["code"]] == [["481920"], ["481920"]]
        assert at.graph.doubled == {}
        status, answer = await at.client.ask("GET", "/whatsapp/wallet")
        consumed = 2 * PRICES["utility"] + PRICES["authentication"]
        assert status == 200
        assert answer["wallet"]["consumed"] == f"{consumed / 1_000_000:.6f}"


async def test_a_user_writes_and_is_answered_while_the_window_is_open(database_url: str, tmp_path: Path) -> None:
    """Meta escapes non-ASCII characters, and signs the escaped text: it arrives as written."""
    async with scene(database_url, tmp_path) as at:
        assert await at.code(USER, "Who are you?") == (409, "whatsapp_window_closed")
        text = "Olá! É a Amélie – o pacote 1/2 não chegou 😀"
        at.graph.inbound(USER, text, name="Amélie Bén/Sá")
        await until(lambda: at.received_objects("message.received"))
        (received,) = at.received_objects("message.received")
        assert (received["text"], received["from"]) == (text, USER)
        reply = await at.send(USER, "We look into it.")
        await at.becomes(reply, "read")
        assert at.cloud.message(reply).content["body"] == "We look into it."

        # A message from yesterday opens nothing, and a template is sent all the same.
        late = "+258841240000"
        at.graph.inbound(late, "yesterday", ago=86_400.0)
        await until(lambda: len(at.received_objects("message.received")) == 2)
        assert await at.code(late, "Too late") == (409, "whatsapp_window_closed")
        await at.becomes(await at.send(late), "read")

        # Meta decides: it has forgotten the window, and so do we.
        at.graph.open_window(USER, seconds=0)
        refused = await at.send(USER, "Are you there?")
        shown = await at.becomes(refused, "failed")
        assert shown["failure"]["code"] == "window_closed"

        async def closed() -> bool:
            return await at.code(USER, "And now?") == (409, "whatsapp_window_closed")

        await until_true(closed)


#: By the last four digits: the outcome, its failure code, and the contract events it raises.
ENDINGS: dict[str, tuple[str, str | None, set[str]]] = {
    "0001": ("failed", "recipient_unreachable", {"message.failed"}),
    "0002": ("read", None, {"message.delivered"}),
    "0003": ("sent", None, set()),
    "0006": ("read", None, {"message.delivered"}),
    "0007": ("read", None, {"message.delivered"}),
    "0008": ("failed", "unknown", {"message.failed"}),
    "0013": ("read", None, {"message.delivered"}),
    "9001": ("failed", "recipient_unreachable", {"message.failed"}),
    "9002": ("delivered", None, {"message.delivered"}),
    "9003": ("delivered", None, {"message.delivered"}),
    "9005": ("read", None, {"message.delivered"}),
    "9009": ("failed", "marketing_limit", {"message.failed"}),
    "9013": ("read", None, {"message.delivered"}),
    "9015": ("read", None, {"message.delivered"}),
    "9021": ("read", None, {"message.delivered"}),
    "9022": ("failed", "unknown", {"message.failed"}),
    "9023": ("failed", "recipient_unreachable", {"message.failed"}),
}


async def test_what_becomes_of_messages_by_their_last_digits(database_url: str, tmp_path: Path) -> None:
    """9022: an authentication code whose connection broke before Meta had it. Nobody can tell, so it fails and is not
    repeated."""
    async with scene(database_url, tmp_path, PATIENT, magic="258") as at:
        ids = {
            ending: await at.send(f"+25884123{ending}", CODE if ending == "9022" else REMINDER) for ending in ENDINGS
        }
        for ending, (status, failure, kinds) in ENDINGS.items():
            shown = await at.becomes(ids[ending], status)
            assert (shown["failure"] or {}).get("code") == failure, ending
            for kind in kinds:
                await until(lambda id=ids[ending], kind=kind: at.ids(kind).count(id) == 1)
        # Each message has one event of each kind, and none that is untrue.
        for ending, (_, _, kinds) in ENDINGS.items():
            raised = {kind for kind in ("message.failed", "message.delivered") if ids[ending] in at.ids(kind)}
            # A failure that was reversed may have arrived together with its reversal; and of several callbacks in
            # flight, as for 9003, the later one may arrive first.
            assert raised - ({"message.failed"} if ending in ("9002", "9003") else set()) == kinds, ending
        assert at.graph.doubled == {}
        delivered = sum("message.delivered" in kinds for _, _, kinds in ENDINGS.values())
        consumed, reserved = await at.cloud.pool.fetchrow("SELECT consumed, reserved FROM wallets")
        assert (consumed, reserved) == (delivered * PRICES["utility"], PRICES["utility"]), "what is sent is reserved"


async def test_a_credential_that_expires_stops_everything_and_fails_nothing(database_url: str, tmp_path: Path) -> None:
    async with scene(database_url, tmp_path) as at:
        at.graph.set_token(at.graph.options.token, state="expired")
        ids = [await at.send(f"+25884125{n:04}", CODE if n % 2 else REMINDER) for n in range(20, 30)]

        async def known() -> bool:
            _, answer = await at.client.ask("GET", "/whatsapp/phone-numbers")
            return bool(answer["items"][0]["credentialStatus"] == "invalid")

        await until_true(known)
        await until(lambda: at.received_objects("whatsapp.phone_number.updated"))
        ids.append(await at.send(USER))
        held = await at.cloud.pool.fetch("SELECT DISTINCT charge, failure_code FROM whatsapp_messages")
        assert [tuple(row) for row in held] == [("reserved", None)]

        at.graph.set_token("a-new-token")
        async with at.cloud.pool.acquire() as conn:
            await accounts.update(
                conn,
                apps.seal_key(at.made.settings),
                organization_id=at.made.actor.organization_id,
                account_id=at.cloud.account_id,
                token="a-new-token",
            )
        for id in ids:
            await at.becomes(id, "read")
        assert at.received_objects("message.failed") == []
        assert at.graph.doubled == {}


async def test_a_template_that_meta_pauses_holds_its_messages_until_it_is_approved_again(
    database_url: str, tmp_path: Path
) -> None:
    async with scene(database_url, tmp_path) as at:
        # Accepted while no worker is running, so that the pause finds them waiting.
        assert await at.worker.stop() == 0
        waiting = [await at.send(f"+25884126{n:04}") for n in range(20, 25)]
        code = await at.send(USER, CODE)
        for template in ("appointment_reminder", "login_code"):
            at.graph.template_event(template, "PAUSED", reason="FIRST_PAUSE")
        at.worker = await at.made.worker()
        await until(lambda: len(at.received_objects("whatsapp.template.updated")) == 2)
        assert {one["status"] for one in at.received_objects("whatsapp.template.updated")} == {"paused"}

        async def refused() -> bool:
            return await at.code(USER) == (409, "whatsapp_template_not_approved")

        await until_true(refused)
        # A code is useless after three hours.
        shown = await at.becomes(code, "failed")
        assert shown["failure"]["code"] == "template_unavailable"

        async def put_off() -> bool:
            # Others may have been accepted before the web process saw the pause.
            held = "SELECT count(*) = 5 FROM queue WHERE due_at > now() AND id = ANY ($1)"
            return bool(await at.cloud.pool.fetchval(held, waiting))

        await until_true(put_off)
        assert at.graph.counters.accepted == 0
        # Meta's events have whole seconds, and Meta's refusals of sends, which told us of the pause, do not.
        known_at = at.graph.clock.now()
        await until(lambda: at.graph.clock.now() > known_at + 1)
        at.graph.template_event("appointment_reminder", "APPROVED")
        await until(lambda: len(at.received_objects("whatsapp.template.updated")) == 3)
        # They are checked every five minutes.
        await at.cloud.pool.execute("UPDATE queue SET due_at = now() WHERE kind = 'whatsapp'")
        for id in waiting:
            await at.becomes(id, "read")
        assert at.ids("message.failed") == [code]
        assert at.graph.doubled == {}
