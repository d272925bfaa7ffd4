"""All wallets, with the sums that must be zero; topping up or correcting one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heliograph.accounts.organizations import Organization
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Problems
from heliograph.console.acting import acting_for, organization
from heliograph.overview.installation import money
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.forms import figures
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import MONEY_CHANGE
from heliograph.whatsapp.money import wallet
from heliograph.whatsapp.money.wallet import WalletInsufficientFunds

HERE = "/console/wallets"
#: Entries on a wallet's page.
ENTRIES = 50
#: The rules' refusals in the form's wording.
WRONG: Mapping[str | tuple[str, str], str] = {
    ("amount", "range"): (
        "Enter an amount other than 0, of at most 1,000,000,000, such as 12.50; only an adjustment may be negative."
    ),
    ("reason", "length"): "Give a reason of at most 500 characters: the organization can read it.",
    ("currency", "required"): "Enter a three-letter currency code, such as EUR.",
    ("currency", "pattern"): "Enter a three-letter currency code, such as EUR.",
}


async def show(request: Request) -> Answer:
    """All wallets, and totals by currency."""
    size = pagination.size(request)
    async with request.reading() as conn:
        found = await money.wallets(conn, after=pagination.after(request), limit=size + 1)
        sums = await money.sums(conn)
    last = found[size - 1].organization_id if len(found) > size else None
    values = {"rows": found[:size], "sums": sums, "pages": pagination.pages(request, last)}
    return Page(template="money/wallets.html", values=values)


async def show_one(request: Request) -> Answer:
    """An organization's wallet, with its latest entries."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        values = await _values(conn, request, one)
    return Page(template="money/wallet.html", values=values)


async def change(request: Request) -> Answer:
    """Add money or make a correction, with a reason that the organization reads."""
    form = request.form
    async with request.reading() as conn:
        one = await organization(conn, request, "id")

    async def work(conn: Connection) -> int:
        wrong, amount = Problems(), None
        no_amount = Invalid(("amount", "format", "Enter an amount such as 250 or 12.50."))
        with wrong.gathering():
            amount = figures.money(form.get("amount", ""), no_amount)
            if amount is None:
                raise no_amount
        currency = form.get("currency", "").strip().upper() or None
        values: dict[str, Any] = {"amount": amount or 0, "currency": currency, "reason": form.get("reason", "")}
        move = wallet.adjust if form.get("kind") == "adjustment" else wallet.top_up
        with wrong.gathering():
            moved = await move(conn, one.id, **values, by=request.principal)
        wrong.report()
        return moved.available

    try:
        await request.once(work, actor=acting_for(request, one))
    except (Invalid, WalletInsufficientFunds) as refusal:
        problem = form_errors(refusal, WRONG) if isinstance(refusal, Invalid) else _too_little()
        async with request.reading() as conn:
            return refused("money/wallet.html", problem, await _values(conn, request, one))
    return Redirect(location=f"{HERE}/{one.id}", notice=request.text("It is booked."))


def _too_little() -> Invalid:
    return Invalid(("amount", "range", "This would subtract more than is left."))


async def _values(conn: Connection, request: Request, one: Organization) -> dict[str, Any]:
    actor, form = acting_for(request, one), request.form
    balance, first = await wallet.show(conn, actor), await wallet.first_currency(conn, actor)
    return {
        "one": one,
        "wallet": balance,
        "currency": balance.currency or wallet.DEFAULT_CURRENCY,
        "first_currency": None if first is None else form.get("currency", first),
        "entries": await wallet.ledger(conn, actor, limit=ENTRIES),
        "movements": words.MOVEMENTS,
        "amount": form.get("amount", ""),
        "reason": form.get("reason", ""),
        "kind": form.get("kind", ""),
        "may_change": request.may(permission=MONEY_CHANGE),
    }
