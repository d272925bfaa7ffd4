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
from heliograph.whatsapp.callbacks.inbox import Inbox
from heliograph.whatsapp.callbacks.intake import CallbackIntake
from heliograph.whatsapp.mirror.apps import App, AppBook
from heliograph.whatsapp.money.rates import RateBook
from tests.rules.factories import TO
from tests.rules.whatsapp_factories import APP_SECRET, KEY, Made

_numbers = count(1)

#: A change of Meta's, with the account it is for: (WABA id, field, value).
Change = tuple[str, str, dict[str, Any]]


def wamid() -> str:
    """An id that nothing else has."""
    return f"wamid.TEST{next(_numbers):08d}"


def ago(**time: float) -> datetime:
    """Whole seconds, as Meta writes them."""
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
    **more: Any,
) -> Change:
    """A message of a user's; `more`: what else stands in it, the object of its type too when it is no text."""
    at = at or clock.now()
    item: dict[str, Any] = {"id": id or wamid(), "timestamp": stamp(at), "type": type}
    contact: dict[str, Any] = {"profile": {"name": "Amal Bén"}}
    if type == "text":
        item["text"] = {"body": text}
    if by is not None:
        item["from"] = contact["wa_id"] = by.removeprefix("+")
    if user_id is not None:
        item["from_user_id"] = contact["user_id"] = user_id
    value = {"metadata": _metadata(made, graph_id), "contacts": [contact], "messages": [item | more]}
    return made.waba_id, "messages", value


def call(made: Made, at: datetime, **more: Any) -> Change:
    """A call of a user's; `more`: what else stands in it."""
    begun = {"id": "wacid.1", "event": "connect", "from": TO[1:], "to": made.digits, "direction": "USER_INITIATED"}
    return made.waba_id, "calls", {"metadata": _metadata(made, ""), "calls": [begun | {"timestamp": stamp(at)} | more]}


def batch(changes: Sequence[Change]) -> bytes:
    """One body, an entry for each."""
    entry = [
        {"id": waba_id, "time": int(clock.now().timestamp()), "changes": [{"field": field, "value": value}]}
        for waba_id, field, value in changes
    ]
    return msgspec.json.encode({"object": "whatsapp_business_account", "entry": entry})


def _metadata(made: Made, graph_id: str) -> dict[str, str]:
    return {"display_phone_number": made.digits, "phone_number_id": graph_id or made.graph_id}


class Meta:
    """Posts batches, signed, past the door's HTTP, and has a worker's inbox work them through."""

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
        """Work through all that is stored; returns how many callbacks that were."""
        done = 0
        while some := await self.inbox.round():
            done += some
        return done

    async def say(self, made: Made, *changes: Change) -> None:
        """One callback, stored and worked through."""
        await self.post(made, *changes)
        await self.work()


def signed(body: bytes) -> bytes:
    """The header that goes with a body."""
    return b"sha256=" + hmac.new(APP_SECRET.encode(), body, hashlib.sha256).hexdigest().encode()
