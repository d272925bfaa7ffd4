"""Endpoints on a real database: what may be registered, how many, and that a secret is shown once and stored sealed."""

from __future__ import annotations

import asyncio
import base64
from uuid import UUID

import pytest

from heliograph.base.actor import Actor
from heliograph.base.crypto import Unsealable
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.webhooks import changing, endpoints
from heliograph.webhooks.recording import events

SETTINGS = Settings(secret_key="a secret key for tests, long enough")
RULES = endpoints.rules(SETTINGS)
LOOPBACK = endpoints.rules(
    Settings(
        secret_key="a secret key for tests, long enough",
        webhook_allow_http=True,
        webhook_allow_networks="127.0.0.0/8",
    )
)
URL = "https://example.com/hooks"


async def organization(pool: Pool) -> Actor:
    id = uuid7()
    await pool.execute(
        "INSERT INTO organizations (id, name, created_at) VALUES ($1, 'Acme ' || $1::uuid, $2)", id, clock.now()
    )
    return Actor(organization_id=id, key_id=None, mode="live", scopes=frozenset(), state="active")


async def create(pool: Pool, actor: Actor, url: str = URL) -> endpoints.Endpoint:
    async with pool.acquire() as conn:
        made, _ = await endpoints.create(conn, actor, url=url, subscribed_events=["message.delivered"], rules=RULES)
    return made


async def test_a_new_endpoint_is_active_and_its_secret_is_shown_once(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        kinds = ["message.failed", "message.delivered", "message.failed"]
        made, secret = await endpoints.create(conn, actor, url=URL, subscribed_events=kinds, rules=RULES)
        listed = await endpoints.list_all(conn, actor)
    assert made.status == "active"
    assert made.subscribed_events == ["message.failed", "message.delivered"]
    assert (made.disabled_at, made.disabled_reason, made.last_success_at) == (None, None, None)
    assert made.consecutive_failures == 0
    assert secret.startswith("whsec_")
    assert listed == [made]


async def test_the_secret_is_sealed_for_its_own_row(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        made, secret = await endpoints.create(conn, actor, url=URL, subscribed_events=["webhook.test"], rules=RULES)
        row = await conn.fetchrow("SELECT * FROM webhook_endpoints WHERE id = $1", made.id)
    assert row is not None
    stored = row["secret"]
    for clear in (secret.encode(), secret[6:].encode(), base64.b64decode(secret[6:])):
        assert clear not in stored
    assert secret not in str([row[name] for name in row.keys() if name != "secret"])  # noqa: SIM118 (a Record)

    def opened(organization_id: UUID, id: UUID) -> str:
        return endpoints.open_secret(RULES.seal_key, organization_id=organization_id, id=id, sealed=stored)

    assert opened(actor.organization_id, made.id) == secret
    for place in [(actor.organization_id, uuid7()), (uuid7(), made.id)]:
        with pytest.raises(Unsealable):
            opened(*place)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://0x7f.1/",
        "https://user:pass@example.com/",
        "https://example.com/" + "x" * 2048,
        "ftp://example.com/",
        "https://exa mple.com/",
        "https://example.com/\0",
        "",
    ],
)
async def test_an_address_that_may_not_be_a_destination_is_refused(pool: Pool, url: str) -> None:
    actor = await organization(pool)
    with pytest.raises(Invalid) as refused:
        await create(pool, actor, url)
    assert [field["field"] for field in refused.value.details["fields"]] == ["url"]


async def test_the_settings_allow_http_and_a_network(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        made, _ = await endpoints.create(
            conn, actor, url="http://127.0.0.1:9000/", subscribed_events=["webhook.test"], rules=LOOPBACK
        )
    assert made.url == "http://127.0.0.1:9000/"


@pytest.mark.parametrize("kinds", [[], ["message.delivered", "message.eaten"], ["*"], [""]])
async def test_only_known_kinds_and_at_least_one(pool: Pool, kinds: list[str]) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        with pytest.raises(Invalid) as refused:
            await endpoints.create(conn, actor, url=URL, subscribed_events=kinds, rules=RULES)
    assert refused.value.details["fields"][0]["field"] == "subscribed_events"


async def test_all_that_is_wrong_with_an_endpoint_is_said_at_once(pool: Pool) -> None:
    actor = await organization(pool)
    endpoint = await create(pool, actor)
    wrong = {"url": "https://10.0.0.1/", "subscribed_events": ["message.eaten"], "description": "x" * 201}
    async with pool.acquire() as conn:
        with pytest.raises(Invalid) as made:
            await endpoints.create(conn, actor, **wrong, rules=RULES)  # type: ignore[arg-type]
        with pytest.raises(Invalid) as changed:
            changes = changing.Changes(**wrong)  # type: ignore[arg-type]
            await changing.change(conn, actor, id=endpoint.id, changes=changes, rules=RULES)
    assert [one["field"] for one in made.value.details["fields"]] == list(wrong)
    assert changed.value.details == made.value.details


async def test_every_kind_there_is_may_be_subscribed_to(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        made, _ = await endpoints.create(conn, actor, url=URL, subscribed_events=events.KINDS, rules=RULES)
    assert made.subscribed_events == list(events.KINDS)


async def test_parallel_creations_stay_at_ten(pool: Pool) -> None:
    actor = await organization(pool)
    for _ in range(6):
        await create(pool, actor)
    done = await asyncio.gather(*[create(pool, actor) for _ in range(12)], return_exceptions=True)
    refused = [one for one in done if isinstance(one, endpoints.TooManyEndpoints)]
    made = [one for one in done if isinstance(one, endpoints.Endpoint)]
    assert (len(made), len(refused)) == (4, 8)
    async with pool.acquire() as conn:
        await changing.disable(conn, actor, id=made[0].id)
    await create(pool, actor)
    with pytest.raises(endpoints.TooManyEndpoints):
        await create(pool, actor)
    await create(pool, await organization(pool))


async def test_a_disabled_endpoint_stays_listed_and_a_repeat_changes_nothing(pool: Pool) -> None:
    actor = await organization(pool)
    older, newer = await create(pool, actor), await create(pool, actor)
    async with pool.acquire() as conn:
        disabled = await changing.disable(conn, actor, id=older.id)
        again = await changing.disable(conn, actor, id=older.id)
        listed = await endpoints.list_all(conn, actor)
    assert (disabled.status, disabled.disabled_reason) == ("disabled", "requested")
    assert disabled.disabled_at is not None
    assert again == disabled
    assert listed == [newer, disabled]


async def test_disabling_drops_what_is_queued_and_nothing_else(pool: Pool) -> None:
    actor = await organization(pool)
    dropped, kept = await create(pool, actor), await create(pool, actor)
    event = events.Event(actor.organization_id, uuid7(), "message.delivered", "r", "{}", clock.now())
    async with pool.acquire() as conn:
        assert await events.record(conn, [event]) == 2
        await changing.disable(conn, actor, id=dropped.id)
        assert [row["line"] for row in await conn.fetch("SELECT line FROM queue")] == [kept.id]
        later = events.Event(actor.organization_id, uuid7(), "message.delivered", "r", "{}", clock.now())
        assert await events.record(conn, [later]) == 1


async def test_disabling_does_not_wait_for_a_delivery_that_is_being_recorded(pool: Pool) -> None:
    actor = await organization(pool)
    endpoint = await create(pool, actor)
    event = events.Event(actor.organization_id, uuid7(), "message.delivered", "r", "{}", clock.now())
    async with pool.acquire() as conn, pool.acquire() as busy:
        await events.record(conn, [event])
        async with busy.transaction():
            await busy.execute("SELECT FROM queue WHERE line = $1 FOR UPDATE", endpoint.id)
            async with asyncio.timeout(120):
                disabled = await changing.disable(conn, actor, id=endpoint.id)
    assert disabled.status == "disabled"


async def test_unknown_and_foreign_endpoints_are_not_found(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    endpoint = await create(pool, actor)
    async with pool.acquire() as conn:
        for who, id in [(other, endpoint.id), (actor, uuid7())]:
            with pytest.raises(NotFound) as refused:
                await changing.disable(conn, who, id=id)
            assert refused.value.details == {"resource": "webhook_endpoint", "id": str(id)}
            assert refused.value.message == "There is no such webhook endpoint."
        assert await endpoints.list_all(conn, other) == []
        assert (await endpoints.list_all(conn, actor))[0].status == "active"


async def test_an_organization_that_is_not_there_gets_no_endpoint(pool: Pool) -> None:
    actor = Actor(organization_id=uuid7(), key_id=None, mode="live", scopes=frozenset(), state="active")
    with pytest.raises(NotFound):
        await create(pool, actor)


async def test_a_list_holds_what_is_active_and_what_was_disabled_lately(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        for age in ("active", 89, 91):
            made, _ = await endpoints.create(
                conn, actor, url=f"{URL}{age}", subscribed_events=["webhook.test"], rules=RULES
            )
            if age != "active":
                await changing.disable(conn, actor, id=made.id)
                await pool.execute(
                    "UPDATE webhook_endpoints SET disabled_at = now() - make_interval(days => $2) WHERE id = $1",
                    made.id,
                    age,
                )
        assert [one.url for one in await endpoints.list_all(conn, actor)] == [f"{URL}89", f"{URL}active"]
        await pool.execute(
            "INSERT INTO webhook_endpoints (organization_id, id, url, subscribed_events, status, secret, created_at,"
            " disabled_at) SELECT $1, id, 'https://example.com/', '{}', 'disabled', '', now(), now()"
            " FROM unnest($2::uuid[]) AS made (id)",
            actor.organization_id,
            [uuid7() for _ in range(600)],
        )
        listed = await endpoints.list_all(conn, actor)
        assert len(listed) == 1 + endpoints.MOST_LISTED
        assert listed[-1].url == f"{URL}active"
