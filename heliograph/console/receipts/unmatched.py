"""Receipts that match no message, with the likely cause and remedy; retry at once, or match by hand."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.errors import Invalid, NotFound
from heliograph.console.messages.looking import HERE as MESSAGES
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import TRAFFIC_CHANGE
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.reports import diagnosis, unmatched
from heliograph.sms.reports.receipts import Applied
from heliograph.sms.reports.unmatched import ReceiptKey, Unmatched

HERE = "/console/receipts/unmatched"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOW = 64


async def show(request: Request) -> Answer:
    """A page of unmatched receipts, newest first."""
    name, only_orphans = request.query.get("supplier", ""), request.query.get("only") == "orphans"
    size, after = pagination.size(request), pagination.after(request)
    async with request.reading() as conn:
        known, simulators = await routing.load(conn), await routing.simulators(conn)
        chosen = next((one for one in known if one.name == name), None)
        found = await unmatched.listed(
            conn,
            supplier_id=None if chosen is None else chosen.id,
            only_orphans=only_orphans,
            after=None if after is None else _read(after),
            limit=size + 1,
        )
        advice = await diagnosis.advise(conn)
    rows = found[:size]
    values: dict[str, Any] = {
        "rows": rows,
        "advice": advice,
        "simulators": simulators,
        "suppliers": [(one.name, one.name) for one in known],
        "chosen": None if chosen is None else chosen.name,
        "only_orphans": only_orphans,
        "pages": pagination.pages(request, _written(rows[-1]) if len(found) > size else None),
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
    template = "receipts/unmatched_live.html" if request.is_fragment else "receipts/unmatched.html"
    return Page(template=template, values=values)


async def retry(request: Request) -> Answer:
    """Search for the message of one of them again, now."""
    place = _place(request, request.form)
    async with request.writing() as conn:
        applied = await unmatched.try_again(conn, [place])
    return Redirect(location=HERE, notice=_said(request, applied), is_refusal=not applied.matched)


async def retry_all(request: Request) -> Answer:
    """Retry the newest unmatched receipts of a supplier."""
    async with request.writing() as conn:
        id = await suppliers.id_of(conn, request.form.get("supplier", ""))
        applied = await unmatched.try_newest(conn, supplier_id=id)
    return Redirect(location=HERE, notice=_said(request, applied), is_refusal=not applied.matched)


async def cure(request: Request) -> Answer:
    """Change how a supplier's ids are read, as recommended."""
    form = request.form
    settings = {name: form[name] for name in ("resp_id_base", "dlr_id_base", "tlv_id_base") if form.get(name)}
    key = suppliers.seal_key(request.services.settings)
    async with request.writing() as conn:
        count = await diagnosis.cure(
            conn, key, supplier=form.get("supplier", ""), settings=settings, by=request.principal
        )
    said = request.locale.count(
        "It is set; %(num)s receipt is checked again.", "It is set; %(num)s receipts are checked again.", count
    )
    return Redirect(location=HERE, notice=said)


async def show_match(request: Request) -> Answer:
    """The form for the message that one of them is about."""
    return Page(template="receipts/match.html", values=_values(_place(request, request.query), request.query))


async def match(request: Request) -> Answer:
    """Match it to this message, for a reason that is recorded in the audit log."""
    form = request.form
    place = _place(request, form)
    try:
        try:
            message = UUID(form.get("message_id", "").strip())
        except ValueError:
            said = "An id looks like 0199c0de-0000-7000-8000-000000000000."
            raise Invalid(("message_id", "format", said)) from None
        async with request.writing() as conn:
            moved = await unmatched.match_by_hand(
                conn, place, message_id=message, reason=form.get("reason", ""), by=request.principal
            )
    except Invalid as refusal:
        return refused("receipts/match.html", refusal, _values(place, form))
    if moved:
        return Redirect(
            location=f"{MESSAGES}/{message}", notice=request.text("It is matched, and its message's status changed.")
        )
    said = request.text("It is matched. The message is not changed: an earlier receipt counts, or parts are missing.")
    return Redirect(location=f"{MESSAGES}/{message}", notice=said)


def _said(request: Request, applied: Applied) -> str:
    if not applied.matched:
        return request.text("Nothing matches yet.")
    return request.locale.count(
        "%(num)s receipt found its message.", "%(num)s receipts found their messages.", applied.matched
    )


def _place(request: Request, given: dict[str, str]) -> ReceiptKey:
    """The place of the receipt. Raises NotFound."""
    try:
        return ReceiptKey(date.fromisoformat(given.get("on", "")), UUID(given.get("supplier", "")), request.id())
    except ValueError:
        raise NotFound from None


def _values(place: ReceiptKey, given: dict[str, str]) -> dict[str, Any]:
    return {
        "place": msgspec.structs.asdict(place),
        "message_id": given.get("message_id", ""),
        "reason": given.get("reason", ""),
    }


def _written(one: Unmatched) -> UUID:
    """The position at which a page ended: arrival time in microseconds, and the beginning of the fingerprint."""
    micros = (one.received_at - _EPOCH) // timedelta(microseconds=1)
    return UUID(int=(micros << _LOW) | (one.place.fingerprint.int >> _LOW))


def _read(after: UUID) -> tuple[datetime, UUID]:
    """The inverse: (arrival time, fingerprint) to continue after. A made-up value is just another time."""
    micros = min(after.int >> _LOW, 4_102_444_800_000_000)
    return _EPOCH + timedelta(microseconds=micros), UUID(int=(after.int & ((1 << _LOW) - 1)) << _LOW)
