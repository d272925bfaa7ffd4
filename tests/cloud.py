"""An installation's WhatsApp: an account at a simulated Graph API in the test's own process, load with a ledger, and a
judge. `tests/processes.py` has the processes, `tests/load.py` and `tests/judge.py` do the same for SMS.

The rule nobody may break: everything is set up the way an operator does it (account, rates, wallet), and the number and
templates are what the workers read from Meta.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Pool, open_pool
from heliograph.simulators.graph.simulator import GraphSimulator, Message, quick
from heliograph.simulators.receiver import Event
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery import signing
from heliograph.whatsapp.mirror import accounts, apps
from heliograph.whatsapp.money import rates, wallet
from heliograph.whatsapp.money.rates import Rate
from tests.load import Load
from tests.processes import Installation, until_true

CURRENCY = "EUR"
#: The price of a delivered message, in millionths. The simulator's first thousand replies a month are free.
PRICES = {"utility": 20_000, "authentication": 30_000, "service": 20_000}
BALANCE = 1_000_000_000
#: All WhatsApp events that a receiver can subscribe to.
KINDS = (
    *("message.sent", "message.delivered", "message.read", "message.failed", "message.received"),
    *("whatsapp.template.updated", "whatsapp.phone_number.updated"),
)

#: Templates of the simulator's demo, as sent.
SHIPPED = {
    "name": "order_shipped",
    "language": "fr",
    "category": "utility",
    "parameters": ["CMD-4471", "Amélie", "jeudi", "track/4471"],
}
NAMED = {
    "name": "delivery_update",
    "language": "en",
    "category": "utility",
    "parameters": ["Ana", "P-17", "Thursday"],
}
REMINDER = {"name": "appointment_reminder", "language": "en", "category": "utility", "parameters": ["Ana", "Monday"]}
CODE = {"name": "login_code", "language": "en", "category": "authentication", "parameters": ["481920"]}


class Cloud:
    """An account of an installation's organization at `graph`. Made by `cloud`."""

    def __init__(self, made: Installation, graph: GraphSimulator, app: UUID, account_id: UUID, pool: Pool) -> None:
        self.made, self.graph, self.pool = made, graph, pool
        self.app, self.account_id = app, account_id
        #: The value of `phoneNumberId`; empty until `ready`.
        self.number_id = ""

    async def ready(self, *, templates: int = 4, within: float = 120.0) -> None:
        """Wait until a worker has read the number and templates, and a web process has passed the handshake."""

        async def mirrored() -> bool:
            found = await self.pool.fetchval("SELECT count(*) FROM whatsapp_templates WHERE status = 'approved'")
            return bool(found >= templates and await self.pool.fetchval("SELECT true FROM whatsapp_numbers"))

        await until_true(mirrored, within=within)
        self.number_id = str(await self.pool.fetchval("SELECT id FROM whatsapp_numbers"))
        async with asyncio.timeout(within):
            await self.graph.verified()

    def body(self, to: str, content: dict[str, Any] | str = REMINDER, **fields: Any) -> dict[str, Any]:
        """The body of a send: a template, or the text of a reply."""
        what = {"type": "text", "text": {"body": content}} if isinstance(content, str) else {}
        what = what or {"type": "template", "template": content}
        return {"to": to, "phoneNumberId": self.number_id, **what, **fields}

    def message(self, id: str) -> Message:
        """The only message that Meta has of one of ours."""
        (found,) = [one for one in self.graph.world.messages.values() if one.tracker == id]
        return found


@contextlib.asynccontextmanager
async def cloud(made: Installation, **options: Any) -> AsyncIterator[Cloud]:
    """Connect the installation to a simulator that calls its web process back. `options`: the simulator's."""
    graph = GraphSimulator(
        quick(**({"status_delay": 0.02, "keep_callbacks": 100_000, "require_proof": True} | options))
    )
    pool = await open_pool(made.url, size=3)
    try:
        await graph.start()
        known = graph.options
        async with pool.acquire() as conn:
            account = await accounts.add(
                conn,
                apps.seal_key(made.settings),
                organization_id=made.actor.organization_id,
                app_id=known.app_id,
                app_secret=known.app_secret,
                verify_token=known.verify_token,
                waba_id=known.waba,
                token=known.token,
                currency=CURRENCY,
                base_url=graph.base_url,
            )
            since = datetime(2025, 1, 1, tzinfo=UTC)
            await rates.import_rates(
                conn, [Rate(CURRENCY, name, rates.ELSEWHERE, since, price) for name, price in PRICES.items()]
            )
            await wallet.top_up(conn, made.actor.organization_id, amount=BALANCE, currency=CURRENCY)
        graph.set_webhook(f"{made.base_url}/in/whatsapp/{account.app}")
        yield Cloud(made, graph, account.app, account.id, pool)
    finally:
        await graph.stop()
        pool.terminate()


class CloudLoad(Load):
    """Templates of every kind, and replies to users who write first; each number gets one message."""

    def __init__(self, cloud: Cloud, *, senders: int = 6, pause: float = 0.06) -> None:
        super().__init__(cloud.made.base_url, cloud.made.key, senders=senders, pause=pause)
        self._cloud = cloud
        #: What was sent to each number: a template's content, or the text of a reply.
        self.contents: dict[str, dict[str, Any] | str] = {}
        #: The number of inbound messages.
        self.written = 0

    async def send_nth(self, n: int) -> None:
        number = f"+25884{n:07d}"
        content = self.contents[number] = (REMINDER, CODE, NAMED, SHIPPED, "You wrote to us.")[n % 5]
        if isinstance(content, str):
            self._cloud.graph.inbound(number, f"Olá, sou {number}")
            self.written += 1
        await self.send_until_accepted(
            "/whatsapp/messages", number, self._cloud.body(number, content), retry_on=b"whatsapp_window_closed"
        )


async def subscribe(cloud: Cloud, kinds: Sequence[str] = KINDS) -> str:
    """Subscribe the installation's receiver to these kinds of events; returns the secret that signs them."""
    made = cloud.made
    async with cloud.pool.acquire() as conn:
        _, secret = await endpoints.create(
            conn, made.actor, url=made.receiver.url, subscribed_events=kinds, rules=endpoints.rules(made.settings)
        )
    return secret


def received_objects(made: Installation, kind: str, secret: str = "") -> list[dict[str, Any]]:
    """The object in `data` of each event of a kind that the receiver got, without repetitions; only correctly signed
    ones if `secret` is given."""
    unique = {event.id: event for event in made.receiver.events if event.type == kind and _genuine(event, secret)}
    return [next(iter(msgspec.json.decode(event.body)["data"].values())) for event in unique.values()]


def _genuine(event: Event, secret: str) -> bool:
    timestamp, signature = event.headers["x-service-timestamp"], event.headers["x-service-signature"]
    at = datetime.fromisoformat(timestamp)
    return (
        not secret
        or signing.verify([secret], timestamp=timestamp, signature=signature, body=event.body, now=at) is None
    )
