"""Wallet: the balance for WhatsApp messages, reservations, charges, and prices."""

from __future__ import annotations

from collections import defaultdict
from datetime import date, timedelta
from typing import Any

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.base.money import UNIT, half_up
from heliograph.dashboard.money import days
from heliograph.dashboard.money.days import Days
from heliograph.pages import languages, words
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.forms import figures
from heliograph.pages.lists import pagination
from heliograph.pages.pieces import charts
from heliograph.pages.pieces.charts import DAY, Chart, Series
from heliograph.pages.pieces.parts import Parts
from heliograph.pages.requests import Request
from heliograph.people.roles import MONEY
from heliograph.whatsapp.money import rates, wallet
from heliograph.whatsapp.money.rates import ELSEWHERE, PRICED


async def show(request: Request) -> Answer:
    """The balance, and a month or range, by day and category."""
    values = await _values(request)
    if (file := charts.download(request, [values["chart"]])) is not None:
        return file
    return Page(template="money/wallet.html", values=values)


async def set_alert(request: Request) -> Answer:
    """Set or remove the low-balance alert."""
    typed = request.form.get("below", "").strip()
    wrong = Invalid(("below", "format", "Enter an amount such as 50 or 12.50, or leave it empty."))
    try:
        below = figures.money(typed, wrong)
        if below is not None and below < 0:
            raise wrong
    except Invalid as refusal:
        return refused("money/wallet.html", refusal, await _values(request, typed))
    actor = request.acting("live")

    async def work(conn: Connection) -> None:
        await wallet.set_alert(conn, actor.organization_id, below=below, by=actor)

    await request.once(work)
    said = request.text("The alert is off.") if below is None else request.text("The alert is set.")
    return Redirect(location=request.to("/wallet"), notice=said)


async def show_ledger(request: Request) -> Answer:
    """Every movement, newest first."""
    size, actor = pagination.size(request), request.acting("live")
    async with request.reading() as conn:
        balance = await wallet.show(conn, actor)
        found = await wallet.ledger(conn, actor, limit=size + 1, after=pagination.after(request))
    entries = found[:size]
    values = {
        "wallet": balance,
        "currency": balance.currency or wallet.DEFAULT_CURRENCY,
        "entries": entries,
        "movements": words.MOVEMENTS,
        "sees_messages": request.may("whatsapp:read", mode="live"),
        "pages": pagination.pages(request, entries[-1].id if len(found) > size else None),
    }
    return Page(template="money/movements.html", values=values)


async def show_prices(request: Request) -> Answer:
    """What a delivered message costs now, by country and category."""
    actor = request.acting("live")
    async with request.reading() as conn:
        currency = (await wallet.show(conn, actor)).currency
        listed = [] if currency is None else await rates.in_force(conn, currency=currency, at=clock.now())
    prices: dict[str, dict[str, int]] = defaultdict(dict)
    for one in listed:
        prices[one.country][one.category] = one.price
    rows = [
        (request.text("All other countries") if country == ELSEWHERE else request.locale.country(country), known)
        for country, known in prices.items()
    ]
    rows.sort(key=lambda row: languages.alphabetical(row[0]))
    named = [name for name in PRICED if any(name in known for known in prices.values())]
    values = {
        "currency": currency or "",
        "rows": rows,
        "categories": [(name, request.text(words.BILLING_CATEGORIES[name])) for name in named],
    }
    return Page(template="money/prices.html", values=values)


async def _values(request: Request, typed: str | None = None) -> dict[str, Any]:
    actor = request.acting("live")
    today = clock.now().date()
    shown, _ = days.read(request)
    month = shown.month or today.replace(day=1)
    following = (month + timedelta(days=31)).replace(day=1)
    parts = Parts(request)
    async with request.reading() as conn:
        # One snapshot: what is charged between the two would seem to be reserved by older messages.
        async with conn.transaction(isolation="repeatable_read", readonly=True):
            balance = await wallet.show(conn, actor)
            reserved = await wallet.reserved(conn, actor) if balance.reserved else None
        looked = wallet.days(conn, actor, since=shown.since, until=shown.until)
        listed = await parts.load("days", looked, otherwise=[])
        latest = await parts.load("latest", wallet.ledger(conn, actor, limit=5), otherwise=[])
    below = balance.alert_below
    currency = balance.currency or wallet.DEFAULT_CURRENCY
    return {
        "parts": parts,
        "wallet": balance,
        "currency": currency,
        "reserved": reserved,
        "shown": shown,
        "earlier": (month - timedelta(days=1)).replace(day=1),
        "later": following if following <= today else None,
        "chart": _chart(request, currency, listed, shown),
        "categories": _categories(listed),
        "names": words.BILLING_CATEGORIES,
        "movements": words.MOVEMENTS,
        "latest": latest,
        "may_change": request.may(permission=MONEY),
        "below": typed if typed is not None else "" if below is None else figures.written(below),
    }


def _chart(request: Request, currency: str, listed: list[wallet.Day], shown: Days) -> Chart:
    text = request.text
    sums: dict[date, int] = defaultdict(int)
    for one in listed:
        sums[one.day] += one.consumed
    if listed:
        title = request.locale.count(
            "%(amount)s charged for %(num)s message.",
            "%(amount)s charged for %(num)s messages.",
            sum(one.messages for one in listed),
            amount=request.locale.money(sum(sums.values()), currency),
        )
    else:
        title = (
            text("Nothing was charged in this month.") if shown.month else text("Nothing was charged in this period.")
        )
    # No day is rounded: those of a file add up to the amount above them, as a message may cost less than a cent.
    digits = next(places for places in range(2, 7) if all(half_up(sum_, places) == sum_ for sum_ in sums.values()))
    named = [shown.since + timedelta(days=n) for n in range((shown.shown_until - shown.since).days)]
    return Chart(
        id=f"wallet-{shown.id}",
        title=title,
        unit=text("%(currency)s a day", currency=currency),
        kind="bars",
        # Days are UTC for everybody.
        locale=languages.locale(request.locale.language),
        times=[clock.midnight(day) for day in named],
        step=DAY,
        series=[Series(text("Charged"), "good", [sums[day] / UNIT for day in named])],
        digits=digits,
    )


def _categories(listed: list[wallet.Day]) -> list[tuple[str, int, int]]:
    """(category, messages, consumed), most expensive first."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in listed:
        sums[one.category][0] += one.messages
        sums[one.category][1] += one.consumed
    return sorted(((name, *both) for name, both in sums.items()), key=lambda row: -row[2])  # type: ignore[misc]
