"""Suppliers: who carries messages, their sessions, their condition, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from heliograph.audit import reading as audit
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.console.engine.console_cache import cache_of
from heliograph.console.suppliers import charts
from heliograph.overview.installation import now
from heliograph.pages.answers import Answer, Page
from heliograph.pages.lists import ranges
from heliograph.pages.lists.changes import with_changes
from heliograph.pages.pieces.charts import download
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import TRAFFIC_CHANGE
from heliograph.sms import checks
from heliograph.sms.callbacks import addresses
from heliograph.sms.dispatch import routing
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.management import drafts, forms, options, watching
from heliograph.sms.reports import words
from heliograph.sms.watched import history, hours, last_receipts, pdus
from heliograph.suppliers import kinds

HERE = "/console/suppliers"
#: Settings that limit the rate of SMPP and HTTP accounts.
RATES = ("submits_per_second", "requests_per_second")
#: Audit log entries shown.
HISTORY = 20


async def show(request: Request) -> Answer:
    """All suppliers, each with findings and remedies."""
    known = cache_of(request)
    async with known.reading(request) as conn:
        listed = await now.suppliers(conn)
        loaded = await routing.load(conn)
        rows = {row.id: row for row in loaded}
        problems = await known.with_current_sessions(conn, request.services.settings, loaded)
        watched = await watching.watch(conn)
        begun = await drafts.list_all(conn)
        reported = await last_receipts.last(conn)
    found = checks.of_suppliers([one.check for one in problems], [one.name for one in listed])
    values: dict[str, Any] = {"drafts": begun, "suppliers": listed, "watched": watched}
    values |= {
        "simulated_only": now.only_simulated(listed),
        "may_change": request.may(permission=TRAFFIC_CHANGE),
        "windows": {one.id: window(rows[one.id]) * one.bound for one in listed if one.id in rows},
        "most": {one.id: fastest(rows[one.id]) * one.bound for one in listed if one.id in rows},
        "reported_at": reported,
        "findings": {one.id: found[one.name] for one in listed},
        "counted": now.COUNTED,
    }
    return Page(
        template="suppliers/suppliers_live.html" if request.is_fragment else "suppliers/suppliers.html", values=values
    )


async def show_one(request: Request) -> Answer:
    """One supplier, with its settings, its last hours, and who changed what."""
    id, known = request.id(), cache_of(request)
    async with known.reading(request) as conn:
        loaded = await routing.load(conn)
        values = await _state(request, conn, _of(loaded, id))
        name, problems = values["row"].name, await known.with_current_sessions(conn, request.services.settings, loaded)
        values["findings"] = checks.of_suppliers([one.check for one in problems], [name])[name]
        if request.is_fragment:
            return Page(template="suppliers/supplier_live.html", values=values)
        one: Supplier = values["row"]
        range = ranges.read(request, usual="24h")
        since, until = charts.bounds(range)
        marks = charts.marks(request, await history.between(conn, id=id, name=one.name, since=since, until=until))
        reported = await watching.hours(conn, id, since=since, until=until)
        drawn = charts.drawn(request, reported, since, until, marks, is_simulated=one.simulated)
        drawn += charts.loads(request, await hours.read(conn, id, since=since, until=until), since, until, marks)
        values |= {
            "range": range,
            "charts": drawn,
            "words": (await words.unknown_states(conn)).get(id, []),
            "codes": await words.answer_codes(conn, one),
            "errors": (await words.error_codes(conn)).get(id, []),
            "history": with_changes(
                request, (await audit.list_page(conn, audit.Filter(object=str(id)), limit=HISTORY)).entries
            ),
        }
    if (file := download(request, drawn)) is not None:
        return file
    shown, defaults = (
        forms.shown(one.kind, one.settings),
        {field.name: field.default for field in forms.fields(one.kind)},
    )
    values |= {
        "settings": [(name, text, text != defaults[name]) for name, text in shown.items()],
        "has_callbacks": one.kind in kinds.HTTP,
        "callbacks": addresses.address(request.services.settings, id),
    }
    return Page(template="suppliers/supplier.html", values=values)


async def _state(request: Request, conn: Connection, row: Supplier) -> dict[str, Any]:
    id, listed = row.id, await now.suppliers(conn)
    sessions = await watching.sessions(conn, id)
    room = window(row) * sum(one.is_bound for one in sessions)
    return {
        "one": next(one for one in listed if one.id == id),
        "counted": now.COUNTED,
        "row": row,
        "watched": (await watching.watch(conn)).get(id),
        "sessions": sessions,
        "room": room,
        "in_flight": sum(one.in_flight for one in sessions),
        "most": fastest(row) * sum(one.is_bound for one in sessions),
        "simulated_only": now.only_simulated(listed),
        "may_change": request.may(permission=TRAFFIC_CHANGE),
        "watch": await pdus.seen(conn, id),
        "reported_at": (await last_receipts.last(conn)).get(id),
    }


def window(one: Supplier) -> int:
    """How many unanswered submits one session may have."""
    return int(options.effective(one.kind, one.settings)["window"])


def fastest(one: Supplier) -> float:
    """Maximum segments per second and session; 0: limited only by the window."""
    settings = options.effective(one.kind, one.settings)
    return float(next((settings[name] for name in RATES if name in settings), 0.0))


async def find(conn: Connection, id: UUID) -> Supplier:
    """A supplier that has not been removed. Raises NotFound."""
    return _of(await routing.load(conn), id)


def _of(loaded: Sequence[Supplier], id: UUID) -> Supplier:
    found = next((one for one in loaded if one.id == id), None)
    if found is None:
        raise NotFound("There is no such supplier.")
    return found
