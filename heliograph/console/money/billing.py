"""Billing export: a month of all organizations, locked once it is over, with its file and checksum."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date
from typing import Any

from heliograph.base.errors import Invalid, NotFound
from heliograph.overview.installation import billing
from heliograph.overview.usage import month_of
from heliograph.pages.answers import Answer, Page, Redirect, Stream, refused
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import MONEY_CHANGE

HERE = "/console/billing"


async def show(request: Request) -> Answer:
    """The months, latest first."""
    async with request.reading() as conn:
        listed = await billing.months(conn)
    return Page(template="money/billing.html", values={"months": listed})


async def show_one(request: Request) -> Answer:
    """A month's totals, from the usage lists and from its lines."""
    return Page(template="money/month.html", values=await _values(request, _month(request)))


async def show_lock(request: Request) -> Answer:
    """What locking a month will record, before it does."""
    values = await _values(request, _month(request))
    if values["one"].locked or not values["one"].is_over:
        raise NotFound
    return Page(template="money/month_lock.html", values=values)


async def lock(request: Request) -> Answer:
    """Record the month's lines for good."""
    month = _month(request)
    try:
        async with request.writing() as conn:
            made = await billing.lock(conn, month=month, by=request.principal)
    except Invalid as refusal:
        return refused("money/month.html", refusal, await _values(request, month))
    said = request.locale.count("It is locked: %(num)s line.", "It is locked: %(num)s lines.", made.lines)
    return Redirect(location=f"{HERE}/{month:%Y-%m}", notice=said)


async def fetch(request: Request) -> Answer:
    """The file, with the same bytes each time."""
    month = _month(request)
    async with request.reading() as conn:
        found = await billing.get(conn, month=month)
    if found.locked is None:
        raise NotFound
    name = f"billing-{month:%Y-%m}.csv"
    return Stream(name=name, kind="text/csv; charset=utf-8", parts=_file(request, month))


async def _file(request: Request, month: date) -> AsyncIterator[bytes]:
    after, is_first = None, True
    while is_first or after is not None:
        async with request.reading_in_turn() as conn:
            text, after = await billing.part(conn, month=month, after=after)
        is_first = False
        yield text


async def _values(request: Request, month: date) -> dict[str, Any]:
    async with request.reading() as conn:
        found = await billing.get(conn, month=month)
        ledger = await billing.ledger(conn, month=month)
        lines = None if found.locked is None else await billing.lines(conn, month=month)
    return {"one": found, "ledger": ledger, "lines": lines, "may_change": request.may(permission=MONEY_CHANGE)}


def _month(request: Request) -> date:
    try:
        return month_of(request.parameters["month"])
    except Invalid:
        raise NotFound from None
