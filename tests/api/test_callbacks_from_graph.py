"""Callbacks as the simulated Graph API sends them, through the API and a worker's inbox: mixed, shuffled, doubled, for
two organizations on one app, and forged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.base.database.pool import Pool
from heliograph.simulators.graph.simulator import GraphSimulator, quick
from tests.rules.callback_factories import Meta
from tests.rules.factories import until
from tests.rules.whatsapp_factories import APP_SECRET, VERIFY_TOKEN, Made, check_wallets, conversation, made
from tests.rules.whatsapp_factories import message as outbound

from .conftest import Api

USERS = [f"+2588412345{number:02d}" for number in range(10)]


@pytest.fixture
async def two(pool: Pool) -> tuple[Made, Made]:
    """Organizations on one app."""
    acme = await made(pool)
    return acme, await made(pool, app=acme.app)


@pytest.fixture
async def graph(api: Api, two: tuple[Made, Made]) -> AsyncIterator[GraphSimulator]:
    """Meta, with the accounts of both."""
    acme, other = two
    options = quick(
        app_secret=APP_SECRET,
        verify_token=VERIFY_TOKEN,
        webhook_url=f"{api.base_url}/in/whatsapp/{acme.app}",
        waba=acme.waba_id,
        number=f"+{acme.digits}",
        number_id=acme.graph_id,
        grouping="mixed",
        batch=7,
        shuffle=True,
        duplicates=0.3,
        duplicate_items=0.3,
    )
    async with GraphSimulator(options) as simulator:
        simulator.add_account(other.waba_id)
        simulator.add_number(other.graph_id, f"+{other.digits}", account=other.waba_id)
        async with asyncio.timeout(120):
            await simulator.verified()
        yield simulator


async def all_through(graph: GraphSimulator, pool: Pool) -> None:
    async with asyncio.timeout(120):
        await graph.settle()
    await Meta(pool).work()


async def texts(pool: Pool, one: Made) -> Counter[Any]:
    rows = await pool.fetch(
        "SELECT data FROM events WHERE kind = 'message.received' AND organization_id = $1", one.organization_id
    )
    return Counter(msgspec.json.decode(row["data"])["message"]["text"] for row in rows)


async def test_users_of_two_organizations_are_heard_once_each(
    pool: Pool, two: tuple[Made, Made], graph: GraphSimulator
) -> None:
    acme, other = two
    for user in USERS:
        graph.inbound(user, f"é/{user} à Acme", name="Amal Bén", number=acme.graph_id)
        graph.inbound(user, f"ü/{user} to the other 😀", number=other.graph_id)
    await all_through(graph, pool)
    assert await texts(pool, acme) == {f"é/{user} à Acme": 1 for user in USERS}
    assert await texts(pool, other) == {f"ü/{user} to the other 😀": 1 for user in USERS}
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations WHERE expires_at > now()") == 20
    assert await pool.fetchval("SELECT verified_at FROM whatsapp_apps") is not None
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_dead_letters") == 0


KINDS = [
    *("text", "button", "button_reply", "list_reply", "flow_reply", "image", "video", "audio", "document", "sticker"),
    *("location", "contacts", "order", "reaction", "unreaction", "number_change", "identity_change", "edit", "revoke"),
    "unsupported",
]


async def test_every_kind_of_message_is_stored(pool: Pool, two: tuple[Made, Made], graph: GraphSimulator) -> None:
    acme, _ = two
    first = graph.inbound(USERS[0], "quoted", number=acme.graph_id)
    for kind in KINDS:
        graph.inbound(USERS[0], kind, kind=kind, number=acme.graph_id, quotes=first)
    graph.inbound("", "hidden", user_id="MZ.13490000000000000001", number=acme.graph_id)
    graph.inbound(USERS[1], "group", group="1", number=acme.graph_id)
    await all_through(graph, pool)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == len(KINDS) + 2
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_dead_letters") == 0
    hidden = await pool.fetchrow("SELECT recipient, expires_at FROM whatsapp_conversations WHERE recipient !~ '^\\+'")
    assert hidden["recipient"] == "MZ.13490000000000000001"
    assert hidden["expires_at"] is not None
    contents = " ".join(row[0] for row in await pool.fetch("SELECT content FROM whatsapp_messages"))
    assert "wamid" not in contents
    assert "sha256" not in contents


@pytest.mark.parametrize(
    ("script", "status", "consumed"),
    [
        ("happy", "read", 10_000),
        ("backwards", "read", 10_000),
        ("read_without_delivered", "read", 10_000),
        ("undeliverable", "failed", 0),
        ("delivered_after_failed", "delivered", 10_000),
        ("failed_after_delivered", "delivered", 10_000),
        ("old_shape", "read", 10_000),
        ("without_contacts", "read", 10_000),
        ("unpriced", "read", 10_000),
    ],
)
async def test_statuses_move_messages_and_money_once(
    api: Api, pool: Pool, two: tuple[Made, Made], graph: GraphSimulator, script: str, status: str, consumed: int
) -> None:
    acme, _ = two
    graph.configure(default_script=script, magic="")
    ids = [await _sent(api, graph, pool, acme, user) for user in USERS[:3]]
    await all_through(graph, pool)
    rows = await pool.fetch("SELECT status, consumed FROM whatsapp_messages WHERE id = ANY ($1)", ids)
    assert {tuple(row) for row in rows} == {(status, consumed)}
    await check_wallets(pool, [acme.organization_id])
    events = await pool.fetch("SELECT message_id, kind, count(*) FROM events GROUP BY 1, 2")
    assert {row[2] for row in events} == {1}


async def _sent(api: Api, graph: GraphSimulator, pool: Pool, one: Made, user: str) -> UUID:
    """A template that the simulator accepted; the same message is stored here as accepted."""
    place = await conversation(pool, one, to=user, opened=None)
    id = await outbound(
        pool, one, to=user, category="utility", age=timedelta(minutes=1), conversation_id=place, queued=False
    )
    values = [{"type": "text", "text": text} for text in ("Amal", "Thursday")]
    body = {
        "messaging_product": "whatsapp",
        "to": user,
        "type": "template",
        "biz_opaque_callback_data": str(id),
        "template": {
            "name": "appointment_reminder",
            "language": {"code": "en"},
            "components": [{"type": "body", "parameters": values}],
        },
    }
    address = f"{graph.base_url}/v25.0/{one.graph_id}/messages"
    headers = {"authorization": f"Bearer {graph.options.token}"}
    async with api.session.post(address, json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
    return id


async def test_events_of_accounts_numbers_and_templates_reach_what_is_mirrored(
    pool: Pool, two: tuple[Made, Made], graph: GraphSimulator
) -> None:
    acme, other = two
    graph.number_event("THROUGHPUT_UPGRADE", number=acme.graph_id)
    await all_through(graph, pool)
    speeds = dict(await pool.fetch("SELECT id, throughput_per_second FROM whatsapp_numbers"))
    assert speeds == {acme.number_id: 1000, other.number_id: 80}
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_dead_letters") == 0


@pytest.mark.parametrize("how", ["wrong_secret", "missing", "upper", "truncated", "unprefixed", "tampered"])
async def test_what_is_forged_is_refused_and_leaves_nothing(
    pool: Pool, two: tuple[Made, Made], graph: GraphSimulator, how: str
) -> None:
    acme, _ = two
    graph.configure(signature=how)
    graph.freeze()  # what is refused would be tried again
    graph.inbound(USERS[0], "Bén", number=acme.graph_id)
    await until(lambda: bool(graph.outbox().attempts))
    await graph.settle()
    assert {one.status for one in graph.outbox().attempts} == {403}
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_callbacks") == 0
    graph.configure(signature="good")
    graph.thaw()
    async with asyncio.timeout(120):
        await graph.advance(3600)
    await all_through(graph, pool)
    assert await texts(pool, acme) == {"Bén": 1}
