"""What any client of the Cloud API has to survive: twelve scenarios, each proven at the highest level that is still
fast. PROVEN lists the tests of each; those in this file run between the simulated Graph API, a web process's work and a
worker's, over real sockets and with real signatures.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.accounts import organizations
from heliograph.accounts.api_keys import lifecycle
from heliograph.base.actor import Actor
from heliograph.whatsapp.mirror import accounts, apps
from tests.cloud import CURRENCY, PRICES, Cloud, cloud, received_objects, subscribe
from tests.load import Client
from tests.processes import Installation, installation, until, until_true
from tests.rules.whatsapp_factories import check_wallets

pytestmark = pytest.mark.lasts(5)

TESTS = Path(__file__).parents[1]
HERE = "journeys/test_whatsapp_must_pass.py"
JOURNEY = "journeys/test_whatsapp_journey.py"

#: Each scenario, and the tests that prove it: end to end first, then every variant of it at the rule.
PROVEN = {
    "a lost answer and then a status: one message to the user, one charge": [
        f"{JOURNEY}::test_what_becomes_of_messages_by_their_last_digits",
        "faults/test_whatsapp_kill.py::test_random_kills_while_sending_and_amid_bursts_of_callbacks",
        "rules/test_whatsapp_dispatch.py::test_a_lost_answer_and_then_a_status_is_one_user_message_and_one_charge",
    ],
    "delivered, fifty times at once: one consumption": [
        f"{HERE}::test_the_same_callback_fifty_times_at_once_consumes_once",
        "rules/test_whatsapp_status.py::test_fifty_times_delivered_at_once_is_one_consumption",
        "rules/test_whatsapp_outcomes.py::test_fifty_callbacks_with_the_same_delivery_are_one_charge",
    ],
    "read, then delivered, then sent: read": [
        f"{JOURNEY}::test_what_becomes_of_messages_by_their_last_digits",
        "rules/test_whatsapp_status.py::test_read_then_delivered_then_sent_is_read",
    ],
    "a thousand items in a callback, one of them poison": [
        f"{HERE}::test_a_thousand_items_in_one_callback_with_one_that_is_poison",
        "rules/test_whatsapp_inbound.py::test_of_a_thousand_items_only_the_poisonous_one_is_lost",
    ],
    "a token that expires mid-way: everything waits, nothing fails, and it goes on": [
        f"{JOURNEY}::test_a_credential_that_expires_stops_everything_and_fails_nothing",
        "rules/test_whatsapp_outcomes.py::test_a_token_that_expires_in_a_campaign_stops_the_account_and_nothing_fails",
    ],
    "a template that is paused mid-campaign": [
        "faults/test_whatsapp_campaign_kill.py::test_a_whole_way_with_a_kill",
        f"{JOURNEY}::test_a_template_that_meta_pauses_holds_its_messages_until_it_is_approved_again",
        "rules/test_whatsapp_dispatch.py::test_a_template_paused_in_a_campaign_holds_its_messages_and_fails_codes",
    ],
    "a window that closes between acceptance and dispatch": [
        f"{HERE}::test_a_window_that_closes_before_the_reply_leaves",
        "rules/test_whatsapp_dispatch.py::test_a_window_that_closed_meanwhile_fails_a_reply_and_gives_the_money_back",
    ],
    "a lifetime that ends gives the money back": [
        f"{HERE}::test_a_lifetime_that_ends_in_silence_and_a_delivery_after_it",
        "rules/test_whatsapp_expiry.py::test_without_a_word_by_the_deadline_a_message_has_expired_and_its_money_is_back",
    ],
    "a late delivery after the money was given back": [
        f"{HERE}::test_a_lifetime_that_ends_in_silence_and_a_delivery_after_it",
        "rules/test_whatsapp_status.py::test_a_late_delivery_takes_the_failure_back_and_is_paid_for",
    ],
    "the signature of a callback with an accented name": [
        f"{JOURNEY}::test_a_user_writes_and_is_answered_while_the_window_is_open",
        "api/test_callbacks.py::test_what_json_means_is_not_what_is_signed",
    ],
    "one byte changed: refused, and nothing stored": [
        f"{HERE}::test_a_callback_that_was_tampered_with_is_not_stored",
        "api/test_callbacks.py::test_one_byte_changed_is_refused_and_nothing_stored",
    ],
    "two organizations on one app never cross": [
        f"{HERE}::test_two_organizations_on_one_app_see_only_their_own",
        "rules/test_whatsapp_inbound.py::test_two_organizations_on_one_app_never_cross",
    ],
}

USER = "+258841230000"


@pytest.mark.parametrize("scenario", PROVEN)
def test_every_scenario_has_its_tests(scenario: str) -> None:
    for place in PROVEN[scenario]:
        file, name = place.split("::")
        assert f"async def {name}(" in (TESTS / file).read_text(), place


@contextlib.asynccontextmanager
async def connected(url: str, place: Path, **options: Any) -> AsyncIterator[tuple[Installation, Cloud, Client]]:
    """A web process's work, running, with a number and templates that a worker has read; the worker has ended."""
    async with installation(url, place) as made, made.serving(), cloud(made, magic="", **options) as sky:
        async with made.working():
            await sky.ready()
        async with Client(made.base_url, made.key) as client:
            yield made, sky, client
        await check_wallets(sky.pool, [made.actor.organization_id])


async def sent(client: Client, sky: Cloud, *arguments: Any) -> str:
    """The id of an accepted message."""
    status, answer = await client.ask("POST", "/whatsapp/messages", json=sky.body(*arguments))
    assert status == 202, answer
    return str(answer["message"]["id"])


async def becomes(client: Client, id: str, status: str) -> dict[str, Any]:
    """The message as it is shown, once it is so."""
    found: dict[str, Any] = {}

    async def is_so() -> bool:
        _, answer = await client.ask("GET", f"/whatsapp/messages/{id}")
        found.update(answer["message"])
        return bool(found["status"] == status)

    await until_true(is_so, within=120)
    return found


async def worked_through(sky: Cloud) -> None:
    """Wait until every callback has been accepted, and then applied."""
    await sky.graph.settle()
    await until_true(lambda: sky.pool.fetchval("SELECT NOT EXISTS (SELECT FROM whatsapp_callbacks)"), within=120)


async def balance(sky: Cloud) -> tuple[int, int]:
    """The reserved and the consumed amount."""
    row = await sky.pool.fetchrow("SELECT reserved, consumed FROM wallets WHERE total > 0")
    return row["reserved"], row["consumed"]


async def test_the_same_callback_fifty_times_at_once_consumes_once(database_url: str, tmp_path: Path) -> None:
    async with connected(database_url, tmp_path) as (made, sky, client), made.working():
        sky.graph.script(USER, ["sent"])
        id = await sent(client, sky, USER)
        await becomes(client, id, "sent")
        assert await balance(sky) == (PRICES["utility"], 0)
        sky.graph.status(sky.message(id).id, "delivered")
        await sky.graph.settle()
        assert set(await sky.graph.outbox().repeat(50)) == {200}
        await worked_through(sky)
        assert await balance(sky) == (0, PRICES["utility"])
        await until(lambda: received_objects(made, "message.delivered"))
        assert await sky.pool.fetchval("SELECT count(*) FROM events WHERE message_id = $1", id) == 1


async def test_a_thousand_items_in_one_callback_with_one_that_is_poison(database_url: str, tmp_path: Path) -> None:
    async with connected(database_url, tmp_path, batch=1000) as (made, sky, client), made.working():
        sky.graph.script("", ["sent"])
        ids = [await sent(client, sky, f"+25884124{n:04}") for n in range(20)]
        for id in ids:
            await becomes(client, id, "sent")
        box = sky.graph.outbox()
        box.hold()
        for n in range(979):
            sky.graph.inbound(f"+25884125{n:04}", "Olá")
            if n == 500:
                sky.graph.inject({"id": 17, "status": ["delivered"], "timestamp": {}, "recipient_id": None})
        for id in ids:
            sky.graph.status(sky.message(id).id, "delivered")
        box.release()
        await worked_through(sky)
        assert sky.graph.attempts[-1].items == 1000
        assert await sky.pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE direction = 'inbound'") == 979
        assert await balance(sky) == (0, 20 * PRICES["utility"])
        assert await sky.pool.fetchval("SELECT count(*) FROM whatsapp_dead_letters") == 1


async def test_a_window_that_closes_before_the_reply_leaves(database_url: str, tmp_path: Path) -> None:
    async with connected(database_url, tmp_path) as (made, sky, client):
        async with made.working():
            sky.graph.inbound(USER, "Hello?")
            await worked_through(sky)
        id = await sent(client, sky, USER, "Here we are.")
        assert await balance(sky) == (PRICES["service"], 0)
        await sky.pool.execute("UPDATE whatsapp_conversations SET expires_at = now()")
        async with made.working():
            shown = await becomes(client, id, "failed")
        assert shown["failure"]["code"] == "window_closed"
        assert await balance(sky) == (0, 0)
        assert sky.graph.counters.accepted == 0


async def test_a_lifetime_that_ends_in_silence_and_a_delivery_after_it(database_url: str, tmp_path: Path) -> None:
    async with connected(database_url, tmp_path) as (made, sky, client), made.working():
        sky.graph.script(USER, ["sent"])
        id = await sent(client, sky, USER)
        await becomes(client, id, "sent")
        await sky.pool.execute("UPDATE whatsapp_messages SET deadline_at = now()")
        shown = await becomes(client, id, "failed")
        assert shown["failure"]["code"] == "expired"
        assert await balance(sky) == (0, 0)
        sky.graph.status(sky.message(id).id, "delivered")
        shown = await becomes(client, id, "delivered")
        assert shown["failure"] is None
        assert await balance(sky) == (0, PRICES["utility"])
        kinds = await sky.pool.fetch("SELECT kind FROM events WHERE message_id = $1 ORDER BY id", id)
        assert [row["kind"] for row in kinds] == ["message.failed", "message.delivered"]


@pytest.mark.parametrize("how", ["tampered", "wrong_secret", "missing"])
async def test_a_callback_that_was_tampered_with_is_not_stored(database_url: str, tmp_path: Path, how: str) -> None:
    async with connected(database_url, tmp_path) as (made, sky, _):
        stored = await sky.pool.fetchval("SELECT count(*) FROM whatsapp_callbacks")
        sky.graph.configure(signature=how)
        sky.graph.inbound(USER, "Olá – é a Amélie", name="Amélie Bén")
        await until(lambda: [one.status for one in sky.graph.attempts][:1] == [403])
        assert await sky.pool.fetchval("SELECT count(*) FROM whatsapp_callbacks") == stored
        # Meta retries, and then it is correctly signed.
        sky.graph.configure(signature="good")
        await sky.graph.clock.advance(60.0)
        await subscribe(sky, ["message.received"])
        async with made.working():
            await until(lambda: received_objects(made, "message.received"))
        (received,) = received_objects(made, "message.received")
        assert received["text"] == "Olá – é a Amélie"


async def test_two_organizations_on_one_app_see_only_their_own(database_url: str, tmp_path: Path) -> None:
    async with connected(database_url, tmp_path) as (made, sky, client):
        graph = sky.graph
        graph.add_account("900100200300401", business="770000000000002")
        graph.add_number("555000111222334", "+15550001001", account="900100200300401")
        async with sky.pool.acquire() as conn:
            other = await organizations.create(conn, name="Other", state="active")
            actor = Actor(other.id, None, "live", frozenset(), other.state)
            _, key = await lifecycle.issue(conn, actor, name="test", profile="full_access", mode="live")
            await accounts.add(
                conn,
                apps.seal_key(made.settings),
                organization_id=other.id,
                app_id=graph.options.app_id,
                app_secret=None,
                verify_token=None,
                waba_id="900100200300401",
                token=graph.options.token,
                currency=CURRENCY,
                base_url=graph.base_url,
            )
        async with made.working(), Client(made.base_url, key) as stranger:
            numbers = "SELECT count(*) = 2 FROM whatsapp_numbers WHERE state = 'active'"
            await until_true(lambda: sky.pool.fetchval(numbers), within=120)
            graph.script("", ["sent"])
            id = await sent(client, sky, USER)
            await becomes(client, id, "sent")
            box = graph.outbox()
            box.hold()
            graph.inbound(USER, "to the first")
            graph.inbound(USER, "to the second", number="555000111222334")
            # A message of one organization, reported under the account of the other.
            said = {"id": sky.message(id).id, "status": "delivered", "timestamp": str(int(time.time()))}
            said |= {"recipient_id": USER.lstrip("+"), "biz_opaque_callback_data": id}
            graph.inject(said, number="555000111222334")
            box.release()
            await worked_through(sky)
            assert graph.attempts[-1].items == 3
            for one, text in ((client, "to the first"), (stranger, "to the second")):
                _, listed = await one.ask("GET", "/whatsapp/messages")
                inbound = [item["id"] for item in listed["items"] if item["direction"] == "inbound"]
                assert len(inbound) == 1
                content = await sky.pool.fetchval("SELECT content FROM whatsapp_messages WHERE id = $1", *inbound)
                assert text in content
            assert (await stranger.ask("GET", f"/whatsapp/messages/{id}"))[0] == 404
            assert (await becomes(client, id, "sent"))["deliveredAt"] is None
            assert await balance(sky) == (PRICES["utility"], 0)
