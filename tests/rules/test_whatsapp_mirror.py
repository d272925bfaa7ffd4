"""The mirror against the simulator: what is read, when it is read again, and what a failure leaves unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.simulators.graph.simulator import GraphSimulator, quick
from heliograph.suppliers.whatsapp_cloud.callbacks.items import AccountItem, CapabilityItem, NumberItem, TemplateItem
from heliograph.suppliers.whatsapp_cloud.callbacks.webhooks import parse
from heliograph.suppliers.whatsapp_cloud.credential import Credential, credential
from heliograph.suppliers.whatsapp_cloud.graph import CloudClient
from heliograph.suppliers.whatsapp_cloud.objects import CloudNumber, CloudTemplate
from heliograph.whatsapp.dispatch import holds
from heliograph.whatsapp.mirror import accounts, apps, numbers, onboarding, reading, sync, template_sync
from heliograph.whatsapp.mirror.accounts import BusinessAccount
from heliograph.whatsapp.mirror.reading import Mirror
from tests.rules import whatsapp_account_factories as made
from tests.rules.factories import endpoint, organization, until
from tests.suppliers.graph_peer import hooked

MANAGEMENT, MESSAGING = "whatsapp_business_management", "whatsapp_business_messaging"


@pytest.fixture
async def graph() -> AsyncIterator[GraphSimulator]:
    async with GraphSimulator(quick()) as started:
        yield started


@pytest.fixture
async def mirror(pool: Pool) -> AsyncIterator[Mirror]:
    one = Mirror(pool, key=made.KEY)
    yield one
    await one.close()


async def begun(pool: Pool, graph: GraphSimulator, actor: Actor | None = None, **values: Any) -> BusinessAccount:
    """An account that the simulator knows; nothing of it has been read yet."""
    given = {
        "app_id": graph.options.app_id,
        "app_secret": graph.options.app_secret,
        "verify_token": graph.options.verify_token,
        "waba_id": graph.options.waba,
        "token": graph.options.token,
        "base_url": graph.base_url,
    }
    return await made.account(pool, actor or await organization(pool), **(given | values))


async def account_row(pool: Pool) -> Any:
    (found,) = await pool.fetch("SELECT *, now() AS now FROM whatsapp_accounts")
    return found


async def due(pool: Pool, *columns: str) -> None:
    """Make these times due, and all others far off."""
    for column in ("mirror_at", "numbers_at", "templates_at"):
        await pool.execute(f"UPDATE whatsapp_accounts SET {column} = now() + interval '1 hour'")
    for column in columns:
        await pool.execute(f"UPDATE whatsapp_accounts SET {column} = now() - interval '1 second'")


def paths(graph: GraphSimulator, since: int = 0) -> list[str]:
    return [f"{one.method} {one.path}" for one in graph.requests[since:]]


async def test_a_new_account_is_read_whole_and_quietly(pool: Pool, graph: GraphSimulator, mirror: Mirror) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, "whatsapp.template.updated", "whatsapp.phone_number.updated")
    for index in range(230):
        graph.add_template(
            {
                "id": str(10**19 + index),
                "name": f"many_{index}",
                "language": "fr",
                "status": "APPROVED",
                "category": "UTILITY",
                "components": [{"type": "BODY", "text": "Bonjour {{1}}."}],
                "account": graph.options.waba,
            }
        )
    await begun(pool, graph, actor)
    assert await mirror.round() == 1
    row = await account_row(pool)
    assert (row["credential_status"], row["mirror_detail"], row["failures"], row["subscribed"]) == ("ok", "", 0, True)
    assert row["mirrored_at"] is not None
    assert row["portfolio"] == graph.options.business
    # About ten minutes, and half an hour.
    assert timedelta(minutes=7) < row["numbers_at"] - row["now"] < timedelta(minutes=13)
    assert timedelta(minutes=22) < row["templates_at"] - row["now"] < timedelta(minutes=38)
    assert row["mirror_at"] == row["numbers_at"]
    (number,) = await pool.fetch("SELECT * FROM whatsapp_numbers")
    assert (number["graph_id"], number["digits"]) == (graph.options.number_id, graph.options.number.lstrip("+"))
    assert (number["connection_status"], number["quality_rating"]) == ("connected", "green")
    # Several pages of them, with ids that no float can represent.
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_templates WHERE name LIKE 'many%'") == 230
    assert await pool.fetchval("SELECT count(DISTINCT graph_id) FROM whatsapp_templates") >= 230
    assert await made.events_of(pool, actor) == []
    assert await mirror.round() == 0


async def test_what_changed_at_meta_is_told(pool: Pool, graph: GraphSimulator, mirror: Mirror) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, "whatsapp.template.updated", "whatsapp.phone_number.updated")
    await begun(pool, graph, actor)
    await mirror.round()
    graph.set_number(quality_rating="RED")
    graph.set_template("order_shipped", status="PAUSED")
    await pool.execute("UPDATE whatsapp_templates SET disabled_locally = true WHERE name <> 'order_shipped'")
    await due(pool, "mirror_at", "numbers_at", "templates_at")
    rang = []
    listening = Mirror(pool, key=made.KEY, on_deliveries=lambda: rang.append(True))
    await listening.round()
    await listening.close()
    told = await made.events_of(pool, actor)
    assert {kind for kind, _ in told} == {"whatsapp.template.updated", "whatsapp.phone_number.updated"}
    assert [data["phoneNumber"]["qualityRating"] for kind, data in told if "number" in kind] == ["red"]
    assert {data["template"]["status"] for kind, data in told if "template" in kind} == {"paused"}
    assert rang == [True]
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_templates WHERE disabled_locally") > 0


async def test_what_was_learned_before_the_clock_was_set_back_outweighs_nothing(
    pool: Pool, graph: GraphSimulator, mirror: Mirror
) -> None:
    """Readings and events used to be ignored for as long as the clock had been ahead."""
    account = await begun(pool, graph)
    await mirror.round()
    for column in ("numbers_read_at", "templates_read_at", "credential_checked_at"):
        await pool.execute(f"UPDATE whatsapp_accounts SET {column} = {column} + interval '1 day'")
    ahead = "jsonb_build_object('status', extract(epoch FROM now()) + 86400, 'category', extract(epoch FROM now()))"
    await pool.execute(f"UPDATE whatsapp_templates SET applied = {ahead}")
    other = await pool.fetchrow("SELECT * FROM whatsapp_templates WHERE name <> 'order_shipped' LIMIT 1")
    now = datetime.now(UTC)
    event = TemplateItem(
        waba_id=account.waba_id,
        field="message_template_status_update",
        at=now,
        fingerprint="",
        kind="status",
        template_id=other["graph_id"],
        event="DISABLED",
    )
    async with pool.acquire() as conn:
        await template_sync.apply_items(conn, account.organization_id, account.id, [(event, now)])
    assert await pool.fetchval("SELECT status FROM whatsapp_templates WHERE id = $1", other["id"]) == "disabled"
    graph.set_number(quality_rating="RED")
    graph.set_template("order_shipped", status="PAUSED")
    graph.set_token(graph.options.token, scopes=[MANAGEMENT])
    await due(pool, "mirror_at", "numbers_at", "templates_at")
    await mirror.round()
    assert await pool.fetchval("SELECT quality_rating FROM whatsapp_numbers") == "red"
    paused = await pool.fetch("SELECT name FROM whatsapp_templates WHERE status = 'paused'")
    assert {row["name"] for row in paused} == {"order_shipped"}
    row = await account_row(pool)
    assert row["credential_status"] == "missing_scope"
    assert max(row["numbers_read_at"], row["templates_read_at"], row["credential_checked_at"]) <= row["now"]


async def test_only_what_is_due_is_read(pool: Pool, graph: GraphSimulator, mirror: Mirror) -> None:
    await begun(pool, graph)
    await mirror.round()
    seen = len(graph.requests)
    await due(pool, "mirror_at", "numbers_at")
    await mirror.round()
    assert not any("message_templates" in path for path in paths(graph, seen))
    row = await account_row(pool)
    assert row["templates_at"] - row["now"] > timedelta(minutes=55)
    seen = len(graph.requests)
    await due(pool, "mirror_at", "templates_at")
    await mirror.round()
    assert all("message_templates" in path for path in paths(graph, seen))


async def test_after_an_event_its_template_alone_is_read(pool: Pool, graph: GraphSimulator, mirror: Mirror) -> None:
    account = await begun(pool, graph)
    await mirror.round()
    graph.set_template("order_shipped", status="DISABLED")
    template = await pool.fetchrow("SELECT * FROM whatsapp_templates WHERE name = 'order_shipped' LIMIT 1")
    await due(pool)
    now = datetime.now(UTC)
    event = TemplateItem(
        waba_id=account.waba_id,
        field="message_template_status_update",
        at=now,
        fingerprint="",
        kind="status",
        template_id=template["graph_id"],
        event="FLAGGED",
    )
    async with pool.acquire() as conn:
        await template_sync.apply_items(conn, account.organization_id, account.id, [(event, now)])
    row = await account_row(pool)
    assert timedelta(seconds=60) < row["mirror_at"] - row["now"] < timedelta(seconds=90)
    assert await mirror.round() == 0
    # Meta's listings may lag behind its events, so it is read only after a while.
    await pool.execute("UPDATE whatsapp_templates SET reread_at = now() WHERE reread_at IS NOT NULL")
    await pool.execute("UPDATE whatsapp_accounts SET mirror_at = now()")
    seen = len(graph.requests)
    assert await mirror.round() == 1
    assert [path.rpartition("/")[2].partition("?")[0] for path in paths(graph, seen)] == [template["graph_id"]]
    stored = await pool.fetchrow("SELECT * FROM whatsapp_templates WHERE id = $1", template["id"])
    assert (stored["status"], stored["reread_at"]) == ("disabled", None)
    row = await account_row(pool)
    assert row["mirror_at"] - row["now"] > timedelta(minutes=5)
    assert await mirror.round() == 0


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"expires_at": int(datetime.now(UTC).timestamp()) + 86_400}, "expiring"),
        ({"scopes": [MANAGEMENT]}, "missing_scope"),
        ({"state": "expired"}, "invalid"),
        ({"state": "revoked"}, "invalid"),
        ({}, "ok"),
    ],
)
async def test_the_credential_is_looked_at(
    pool: Pool, graph: GraphSimulator, mirror: Mirror, fields: dict[str, Any], status: str
) -> None:
    await begun(pool, graph)
    graph.set_token(graph.options.token, **fields)
    await mirror.round()
    row = await account_row(pool)
    assert row["credential_status"] == status
    assert (row["held_until"] is not None) == (status == "invalid")
    assert bool(row["credential_detail"]) == (status != "ok")


async def test_a_bad_credential_keeps_the_mirror_and_a_good_one_ends_the_hold(
    pool: Pool, graph: GraphSimulator, mirror: Mirror
) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, "whatsapp.template.updated", "whatsapp.phone_number.updated")
    account = await begun(pool, graph, actor)
    await mirror.round()
    known = await pool.fetch("SELECT id, status FROM whatsapp_templates ORDER BY id")
    graph.set_token(graph.options.token, state="expired")
    await due(pool, "mirror_at", "numbers_at", "templates_at")
    await mirror.round()
    row = await account_row(pool)
    assert row["credential_status"] == "invalid"
    assert "numbers: 190" in row["mirror_detail"]
    assert "templates: 190" in row["mirror_detail"]
    assert row["failures"] == 1
    assert timedelta(seconds=25) < row["mirror_at"] - row["now"] < timedelta(seconds=80)
    assert await pool.fetch("SELECT id, status FROM whatsapp_templates ORDER BY id") == known
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_numbers WHERE state = 'active'") == 1
    async with pool.acquire() as conn:
        (line,) = await accounts.load_lines(conn)
        assert line.held_until is not None
        assert line.held_reason == "credential"
        await holds.hold_account(
            conn, account.organization_id, account.id, seconds=3600, reason="credential", credential_invalid=True
        )
    # Again, and the pause grows.
    await due(pool, "mirror_at", "numbers_at")
    await mirror.round()
    row = await account_row(pool)
    assert (row["failures"], row["mirror_at"] - row["now"] > timedelta(seconds=80)) == (2, True)
    graph.set_token(graph.options.token, state="valid")
    await due(pool, "mirror_at", "numbers_at", "templates_at")
    await mirror.round()
    row = await account_row(pool)
    assert (row["credential_status"], row["failures"], row["mirror_detail"]) == ("ok", 0, "")
    # One message probes at once, although the hold had an hour to go.
    assert row["held_until"] <= row["now"]
    told = [data["phoneNumber"]["credentialStatus"] for _, data in await made.events_of(pool, actor)]
    assert told == ["invalid", "ok"]


async def test_a_refusal_during_a_reading_is_newer_than_its_check(pool: Pool, graph: GraphSimulator) -> None:
    account = await begun(pool, graph)
    holding = Mirror(pool, key=made.KEY)
    graph.configure(latency_ms=300.0)
    reading = asyncio.create_task(holding.round())
    for _ in range(500):
        if graph.requests:
            break
        await asyncio.sleep(0.01)
    async with pool.acquire() as conn:
        await holds.hold_account(
            conn, account.organization_id, account.id, seconds=60, reason="credential", credential_invalid=True
        )
    await reading
    await holding.close()
    row = await account_row(pool)
    assert row["credential_status"] == "invalid"
    assert row["held_until"] > row["now"]


async def test_a_refusal_during_a_reading_does_not_say_why_a_longer_hold_lasts(
    pool: Pool, graph: GraphSimulator, mirror: Mirror
) -> None:
    """Meta blocks the account for ten minutes, and then a reading finds its token expired."""
    account = await begun(pool, graph)
    for seconds, reason in ((600.0, "blocked for policy violations"), (2.0, "credential")):
        await pool.execute("UPDATE whatsapp_accounts SET held_until = NULL, held_reason = NULL")
        async with pool.acquire() as conn:
            hold = (conn, account.organization_id, account.id)
            await holds.hold_account(*hold, seconds=seconds, reason="blocked for policy violations")
        graph.set_token(graph.options.token, state="expired")
        await due(pool, "mirror_at", "numbers_at", "templates_at")
        await mirror.round()
        row = await account_row(pool)
        assert (row["credential_status"], row["held_reason"]) == ("invalid", reason)
        assert row["held_until"] - row["now"] > timedelta(seconds=50)


async def test_a_secret_that_is_wrong_says_nothing_of_the_token(
    pool: Pool, graph: GraphSimulator, mirror: Mirror
) -> None:
    await begun(pool, graph, app_secret="wrong")
    await mirror.round()
    row = await account_row(pool)
    assert (row["credential_status"], row["held_until"]) == ("unknown", None)
    assert row["mirror_detail"].startswith("credential: 190")
    # With it, no call has a proof that Meta accepts.
    assert "numbers: 100 Invalid appsecret_proof" in row["mirror_detail"]
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_numbers") == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_reading_with_the_old_secret_does_not_outlast_one_with_the_new_secret(
    pool: Pool, order: tuple[int, int]
) -> None:
    """For ten minutes, doctor went on saying that the app's secret is wrong."""
    account = await made.account(pool, await organization(pool))
    now = clock.now()
    wrong = sync.Reading(
        asked_at=now - timedelta(seconds=30), credential="unknown", credential_detail="it could not be checked"
    )
    right = sync.Reading(asked_at=now - timedelta(seconds=20), credential="ok", numbers=[])
    async with pool.acquire() as conn:
        for place in order:
            await sync.store(conn, account.organization_id, account.id, (wrong, right)[place])
    row = await account_row(pool)
    assert (row["credential_status"], row["credential_detail"]) == ("ok", "")


async def test_a_reading_that_began_with_the_old_secret_says_nothing_about_the_new_one(pool: Pool) -> None:
    account = await made.account(pool, await organization(pool))
    await pool.execute("UPDATE whatsapp_accounts SET credential_status = 'ok'")
    wrong = sync.Reading(asked_at=clock.now() - timedelta(seconds=30), credential="unknown")
    async with pool.acquire() as conn:
        await apps.change_app(conn, made.KEY, app_id=made.APP, app_secret="new secret")
        await sync.store(conn, account.organization_id, account.id, wrong)
    assert (await account_row(pool))["credential_status"] == "ok"


async def test_a_reading_that_is_requested_while_another_one_fails_is_not_put_off(
    pool: Pool, graph: GraphSimulator
) -> None:
    account = await begun(pool, graph)

    class Failing(CloudClient):
        async def phone_numbers(self, waba_id: str, credential: Credential) -> list[CloudNumber]:
            async with pool.acquire() as conn:
                await accounts.update(
                    conn, made.KEY, organization_id=account.organization_id, account_id=account.id, token="another"
                )
            raise RuntimeError

    failing = Mirror(pool, key=made.KEY, connect=Failing)
    await failing.round()
    row = await account_row(pool)
    assert (row["failures"], row["mirror_detail"]) == (1, "RuntimeError")
    assert row["mirror_at"] <= row["now"]
    await failing.close()


@pytest.mark.parametrize("kind", ["html", "empty", "drop"])
async def test_trouble_at_meta_keeps_the_mirror(pool: Pool, graph: GraphSimulator, mirror: Mirror, kind: str) -> None:
    await begun(pool, graph)
    await mirror.round()
    graph.fault(kind, on="management")
    await due(pool, "mirror_at", "numbers_at", "templates_at")
    await mirror.round()
    row = await account_row(pool)
    assert "templates: " in row["mirror_detail"]
    assert (row["failures"], row["credential_status"], row["held_until"]) == (1, "ok", None)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_templates WHERE status = 'removed'") == 0
    graph.clear_faults()
    await due(pool, "mirror_at", "numbers_at", "templates_at")
    await mirror.round()
    row = await account_row(pool)
    assert (row["failures"], row["mirror_detail"], row["credential_status"]) == (0, "", "ok")


async def test_one_worker_reads_an_account_at_a_time(pool: Pool, graph: GraphSimulator) -> None:
    await begun(pool, graph)
    workers = [Mirror(pool, key=made.KEY) for _ in range(4)]
    assert sum(await asyncio.gather(*(one.round() for one in workers))) == 1
    assert sum("debug_token" in path for path in paths(graph)) == 1
    for one in workers:
        await one.close()


async def test_a_lease_brings_back_what_a_dead_worker_left(pool: Pool, graph: GraphSimulator, mirror: Mirror) -> None:
    await begun(pool, graph)
    assert len(await Mirror(pool, key=made.KEY)._claim(1)) == 1
    assert await mirror.round() == 0
    row = await account_row(pool)
    assert row["mirror_at"] == row["numbers_at"] == row["templates_at"]
    await pool.execute("UPDATE whatsapp_accounts SET mirror_at = now(), numbers_at = now(), templates_at = now()")
    assert await mirror.round() == 1
    assert (await account_row(pool))["mirrored_at"] is not None


async def test_a_worker_that_stops_leaves_what_it_was_reading_to_the_next_one(
    pool: Pool, graph: GraphSimulator, mirror: Mirror
) -> None:
    """It was read once the lease had ended: `heliograph up`, stopped while it started, was ready 5 minutes later."""
    await begun(pool, graph)
    stopping = Mirror(pool, key=made.KEY)
    graph.configure(latency_ms=60_000.0, p99_ms=60_000.0)
    assert await stopping.step() == 1
    await stopping.close()
    graph.configure(latency_ms=0.0, p99_ms=0.0)
    assert await mirror.round() == 1
    assert (await account_row(pool))["mirrored_at"] is not None
    assert await mirror.round() == 0


async def test_what_an_event_asks_for_during_a_reading_is_not_forgotten(pool: Pool, graph: GraphSimulator) -> None:
    account = await begun(pool, graph)
    reading = Mirror(pool, key=made.KEY)
    graph.configure(latency_ms=300.0)
    await reading.step()
    now = datetime.now(UTC)
    event = TemplateItem(
        waba_id=account.waba_id,
        field="message_template_status_update",
        at=now,
        fingerprint="",
        kind="status",
        template_id="4711",
        name="brand_new",
        language="fr",
        event="APPROVED",
    )
    async with pool.acquire() as conn:
        await template_sync.apply_items(conn, account.organization_id, account.id, [(event, now)])
    await reading.round()
    await reading.close()
    row = await account_row(pool)
    assert row["mirrored_at"] is not None
    assert row["templates_at"] - row["now"] < timedelta(seconds=90)
    assert row["mirror_at"] == row["templates_at"]
    assert row["numbers_at"] - row["now"] > timedelta(minutes=5)


async def test_meta_is_asked_less_when_it_says_so(pool: Pool, graph: GraphSimulator) -> None:
    class Advised(CloudClient):
        """A client that was told to wait, with other tokens far longer."""

        advice = 0.03

        def pause(self, token: str, at: float | None = None) -> float:
            return self.advice if token == graph.options.token else 600.0

    await begun(pool, graph)
    advised = Mirror(pool, key=made.KEY, connect=Advised)
    await advised.round()
    assert (await account_row(pool))["mirrored_at"] is not None
    Advised.advice = 600.0
    await due(pool, "mirror_at", "numbers_at", "templates_at")
    seen = len(graph.requests)
    assert await advised.round() == 1
    assert len(graph.requests) == seen
    row = await account_row(pool)
    assert timedelta(minutes=9) < row["mirror_at"] - row["now"] <= timedelta(minutes=10)
    assert row["failures"] == 0
    await advised.close()


def test_a_reading_that_waits_as_advised_ends_in_its_time() -> None:
    """At almost all of its calls used up, Meta advises a minute before each: a reading that took them all was aborted,
    and so was each one after it."""
    waited = 0.0
    for _ in range(10):
        waited += sync.wait_of(60.0, waited)
    assert waited == sync.ALL_WAITS < reading.LONGEST
    assert sync.wait_of(3_600.0, 0.0) == sync.LONGEST_WAIT
    assert sync.wait_of(0.0, 0.0) == 0.0


async def test_an_account_can_be_read_at_once(pool: Pool, graph: GraphSimulator, mirror: Mirror) -> None:
    account = await begun(pool, graph)
    synced = await mirror.sync(account.organization_id, account.id)
    assert synced is not None
    found, changed = synced
    assert (found.credential, found.problems, changed.numbers) == ("ok", [], 1)
    assert changed.templates.added > 0
    assert await mirror.round() == 0
    graph.set_template("order_shipped", status="REJECTED", rejected_reason="PROMOTIONAL")
    again = await mirror.sync(account.organization_id, account.id, numbers=False)
    assert again is not None
    assert again[1].templates.changed > 0
    async with pool.acquire() as conn:
        await accounts.set_state(conn, organization_id=account.organization_id, account_id=account.id, state="removed")
    assert await mirror.sync(account.organization_id, account.id) is None


async def test_what_an_event_has_scheduled_stays_so_if_somebody_reads_the_account_before(
    pool: Pool, graph: GraphSimulator, mirror: Mirror
) -> None:
    account = await begun(pool, graph)
    await mirror.round()
    async with pool.acquire() as conn:
        await numbers.wake_mirror(conn, account.organization_id, account.id, numbers=True, templates=True)
    scheduled = await account_row(pool)
    await mirror.sync(account.organization_id, account.id)
    row = await account_row(pool)
    assert row["mirrored_at"] > scheduled["now"]
    for column in ("numbers_at", "templates_at", "mirror_at"):
        assert row[column] == scheduled["numbers_at"], column
    client = CloudClient(account.base_url, account.api_version)
    async with pool.acquire() as conn:
        await onboarding.change_token(conn, made.KEY, client, account=account, token=graph.options.token)
    await client.close()
    row = await account_row(pool)
    for column in ("numbers_at", "templates_at", "mirror_at"):
        assert row[column] == scheduled["numbers_at"], column


async def test_a_template_that_was_deleted_at_meta_is_removed(
    pool: Pool, graph: GraphSimulator, mirror: Mirror
) -> None:
    account = await begun(pool, graph)
    await mirror.round()
    names = [row["name"] for row in await pool.fetch("SELECT name FROM whatsapp_templates ORDER BY name")]
    async with CloudSession(graph) as delete:
        await delete(account.waba_id, names[0])
    await due(pool, "mirror_at", "templates_at")
    await mirror.round()
    gone = await pool.fetchval("SELECT status FROM whatsapp_templates WHERE name = $1 LIMIT 1", names[0])
    assert gone == "removed"


async def moved(pool: Pool, graph: GraphSimulator, mirror: Mirror) -> tuple[BusinessAccount, BusinessAccount]:
    """Two accounts of an organization, of which Meta has moved the first one's number to the other."""
    actor = await organization(pool)
    account = await begun(pool, graph, actor)
    other = await begun(pool, graph, actor, waba_id=graph.add_account("900100200300999").id)
    await mirror.round()
    graph.set_number(account=other.waba_id)
    return account, other


async def test_a_number_that_an_account_has_lost_is_looked_for_in_the_others_at_once(
    pool: Pool, graph: GraphSimulator, mirror: Mirror
) -> None:
    account, other = await moved(pool, graph, mirror)
    await due(pool)
    await pool.execute("UPDATE whatsapp_numbers SET missing_at = now() - interval '6 minutes'")
    await mirror.sync(account.organization_id, account.id, templates=False)
    await mirror.round()
    rows = await pool.fetch("SELECT account_id, state, graph_id FROM whatsapp_numbers ORDER BY created_at")
    assert [tuple(row) for row in rows] == [
        (account.id, "removed", graph.options.number_id),
        (other.id, "active", graph.options.number_id),
    ]


async def test_an_account_whose_number_is_listed_in_another_one_is_read_at_once(
    pool: Pool, graph: GraphSimulator, mirror: Mirror
) -> None:
    account, other = await moved(pool, graph, mirror)
    await mirror.sync(other.organization_id, other.id, templates=False)
    assert await mirror.round() == 1
    rows = await pool.fetch("SELECT account_id, state, missing_at IS NOT NULL FROM whatsapp_numbers")
    assert [tuple(row) for row in rows] == [(account.id, "active", True)]


class Lossy(CloudClient):
    """Sees empty lists, as if every page of them were lost, while `blind`."""

    blind = False

    async def templates(self, waba_id: str, credential: Credential) -> list[CloudTemplate]:
        return [] if self.blind else await super().templates(waba_id, credential)

    async def phone_numbers(self, waba_id: str, credential: Credential) -> list[CloudNumber]:
        return [] if self.blind else await super().phone_numbers(waba_id, credential)


async def test_a_listing_that_lacks_something_removes_only_what_meta_says_is_gone(
    pool: Pool, graph: GraphSimulator
) -> None:
    """Meta's lists come in pages, and a lost page used to cost every message of its templates."""
    client = Lossy(graph.base_url)
    mirror = Mirror(pool, key=made.KEY, connect=lambda *_: client)
    account = await begun(pool, graph)
    await mirror.round()
    names = [row["name"] for row in await pool.fetch("SELECT name FROM whatsapp_templates ORDER BY name")]
    async with CloudSession(graph) as delete:
        await delete(account.waba_id, names[0])
    client.blind = True
    await due(pool, "mirror_at", "templates_at", "numbers_at")
    await mirror.round()
    rows = await pool.fetch("SELECT name, status, missing_at FROM whatsapp_templates ORDER BY name")
    assert [(row["name"], row["status"] == "removed", row["missing_at"]) for row in rows] == [
        (name, name == names[0], None) for name in names
    ]
    assert await pool.fetchval("SELECT state FROM whatsapp_numbers") == "active"
    # If Meta cannot be asked for it either, the stored data stays, and is requested again soon.
    graph.fault("json", on="management", status=500, code=2)
    await due(pool, "mirror_at", "templates_at", "numbers_at")
    await mirror.round()
    waiting = await pool.fetch("SELECT name FROM whatsapp_templates WHERE missing_at IS NOT NULL ORDER BY name")
    assert [row["name"] for row in waiting] == names[1:]
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_templates WHERE status = 'removed'") == 1
    graph.clear_faults()
    await due(pool, "mirror_at", "templates_at", "numbers_at")
    await mirror.round()
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_templates WHERE missing_at IS NOT NULL") == 0
    await mirror.close()


Happen = Callable[[GraphSimulator], None]
HAPPENINGS: list[tuple[str, Happen]] = [
    ("paused", lambda graph: graph.template_event("order_shipped", "PAUSED")),
    ("rejected", lambda graph: graph.template_event("order_shipped", "REJECTED", reason="PROMOTIONAL")),
    ("disabled", lambda graph: graph.template_event("login_code", "DISABLED")),
    ("flagged", lambda graph: graph.template_event("login_code", "FLAGGED")),
    ("deleted", lambda graph: graph.template_event("appointment_reminder", "DELETED")),
    ("notice", lambda graph: graph.template_event("order_shipped", "category_notice", value="MARKETING")),
    ("category", lambda graph: graph.template_event("order_shipped", "category", value="MARKETING")),
    ("quality", lambda graph: graph.template_event("order_shipped", "quality", value="RED")),
    ("upgrade", lambda graph: graph.number_event("THROUGHPUT_UPGRADE")),
    ("integer", lambda graph: graph.account_event("capability", value=2000)),
    ("unlimited", lambda graph: graph.account_event("capability", value=-1)),
    ("text", lambda graph: graph.account_event("capability", value="TIER_100K")),
    ("restricted", lambda graph: graph.account_event("ACCOUNT_RESTRICTION")),
    ("banned", lambda graph: graph.account_event("DISABLED_UPDATE", value="DISABLE")),
]
SEEN = """
SELECT name, language, category, status, quality, rejection_reason, parameter_count FROM whatsapp_templates
UNION ALL
SELECT digits, connection_status, messaging_tier, messaging_limit::text, quality_rating, verified_name,
       throughput_per_second FROM whatsapp_numbers
ORDER BY 1
"""


@pytest.mark.parametrize(("name", "happen"), HAPPENINGS, ids=[name for name, _ in HAPPENINGS])
async def test_an_event_and_a_reading_come_to_the_same(
    pool: Pool, graph: GraphSimulator, mirror: Mirror, name: str, happen: Happen
) -> None:
    async with hooked() as hook:
        account = await begun(pool, graph)
        await mirror.round()
        graph.set_webhook(hook.url)
        before = await pool.fetch(SEEN)
        happen(graph)
        await until(lambda: bool(hook.callbacks))
    (item,) = parse(hook.callbacks[0][0])
    assert isinstance(item, TemplateItem | NumberItem | CapabilityItem | AccountItem)
    async with pool.acquire() as conn:
        now = datetime.now(UTC)
        ids = (account.organization_id, account.id)
        if isinstance(item, TemplateItem):
            await template_sync.apply_items(conn, *ids, [(item, now)])
        else:
            await numbers.apply_items(conn, *ids, [(item, now)])
    told = await pool.fetch(SEEN)
    assert (told == before) == (name in ("notice", "flagged", "unlimited"))
    # As if the event had been long ago, so that the reading takes precedence.
    for table in ("whatsapp_templates", "whatsapp_numbers"):
        await pool.execute(f"UPDATE {table} SET applied = '{{}}'")
    await mirror.sync(*ids)
    assert await pool.fetch(SEEN) == told


class CloudSession:
    """Somebody on Meta's own pages."""

    def __init__(self, graph: GraphSimulator) -> None:
        self._graph = graph
        self._client = CloudClient(graph.base_url)

    async def __aenter__(self) -> Any:
        return self._delete

    async def __aexit__(self, *raised: object) -> None:
        await self._client.close()

    async def _delete(self, waba_id: str, name: str) -> None:
        options = self._graph.options
        shown = credential(options.token, options.app_secret.encode())
        await self._client._call("DELETE", f"{waba_id}/message_templates", shown, {"name": name})
