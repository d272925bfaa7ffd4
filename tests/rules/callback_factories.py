"""Factories for tests of callbacks: statuses and messages as Meta writes them, batches, and a worker's inbox."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.whatsapp.callbacks.intake import CallbackIntake
from heliograph.whatsapp.callbacks.processing.inbox import Inbox
from heliograph.whatsapp.mirror.apps import App, AppBook
from heliograph.whatsapp.money.rates import RateBook
from tests.rules.factories import TO
from tests.rules.whatsapp_factories import APP_SECRET, KEY, Made

_numbers = count(1)

#: A change as Meta reports it, with its account: (WABA id, field, value).
Change = tuple[str, str, dict[str, Any]]


def wamid() -> str:
    """A unique id."""
    return f"wamid.TEST{next(_numbers):08d}"


def ago(**time: float) -> datetime:
    """A time in the past in whole seconds, as Meta writes it."""
    return clock.now().replace(microsecond=0) - timedelta(**time)


def stamp(at: datetime) -> str:
    return str(int(at.timestamp()))


def status(
    made: Made, id: str, status: str, at: datetime | None = None, *, to: str = TO, graph_id: str = "", **more: Any
) -> Change:
    """A status of the message with a wamid; `more`: biz_opaque_callback_data, pricing, errors …"""
    at = at or clock.now()
    item = {"id": id, "status": status, "timestamp": stamp(at), "recipient_id": to.removeprefix("+"), **more}
    return made.waba_id, "messages", {"metadata": _metadata(made, graph_id), "statuses": [item]}


def message(
    made: Made,
    text: str = "hello",
    at: datetime | None = None,
    *,
    by: str | None = TO,
    user_id: str | None = None,
    id: str | None = None,
    type: str = "text",
    graph_id: str = "",
    digits: str = "",
    **more: Any,
) -> Change:
    """A message from a user; `more`: its other fields, including the object of its type if it is not a text.
    `graph_id`: of another number, whose `digits` are others as well."""
    at = at or clock.now()
    item: dict[str, Any] = {"id": id or wamid(), "timestamp": stamp(at), "type": type}
    contact: dict[str, Any] = {"profile": {"name": "Amal Bén"}}
    if type == "text":
        item["text"] = {"body": text}
    if by is not None:
        item["from"] = contact["wa_id"] = by.removeprefix("+")
    if user_id is not None:
        item["from_user_id"] = contact["user_id"] = user_id
    metadata = _metadata(made, graph_id)
    if graph_id not in ("", made.graph_id):
        metadata["display_phone_number"] = digits or "258849990000"
    value = {"metadata": metadata, "contacts": [contact], "messages": [item | more]}
    return made.waba_id, "messages", value


def call(made: Made, at: datetime, **more: Any) -> Change:
    """A call from a user; `more`: its other fields."""
    begun = {"id": "wacid.1", "event": "connect", "from": TO[1:], "to": made.digits, "direction": "USER_INITIATED"}
    return made.waba_id, "calls", {"metadata": _metadata(made, ""), "calls": [begun | {"timestamp": stamp(at)} | more]}


def batch(changes: Sequence[Change]) -> bytes:
    """One body with an entry for each change."""
    entry = [
        {"id": waba_id, "time": int(clock.now().timestamp()), "changes": [{"field": field, "value": value}]}
        for waba_id, field, value in changes
    ]
    return msgspec.json.encode({"object": "whatsapp_business_account", "entry": entry})


def _metadata(made: Made, graph_id: str) -> dict[str, str]:
    return {"display_phone_number": made.digits, "phone_number_id": graph_id or made.graph_id}


class Meta:
    """Posts signed batches without HTTP, and processes them like a worker's inbox."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.deliveries = 0
        self.intake = CallbackIntake(pool, AppBook(pool, KEY), KEY)
        self.inbox = Inbox(pool, KEY, RateBook(pool), on_deliveries=self._count)

    def _count(self) -> None:
        self.deliveries += 1

    async def post(self, made: Made, *changes: Change, raw: bytes | None = None) -> None:
        """Store one callback."""
        body = batch(changes) if raw is None else raw
        app: App = await self.intake.app(made.app)
        await self.intake.take(app, body, signed(body))

    async def work(self) -> int:
        """Process all stored callbacks; returns how many there were."""
        done = 0
        while some := await self.inbox.round():
            done += some
        return done

    async def say(self, made: Made, *changes: Change) -> None:
        """Store and process one callback."""
        await self.post(made, *changes)
        await self.work()


def signed(body: bytes) -> bytes:
    """The signature header of a body."""
    return b"sha256=" + hmac.new(APP_SECRET.encode(), body, hashlib.sha256).hexdigest().encode()
