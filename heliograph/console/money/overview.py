"""Money: upcoming renewals and quota of all organizations; current, future and missing prices."""

from __future__ import annotations

from typing import Any

from heliograph.overview.installation import money, organizations
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import MONEY_CHANGE


async def show_plans(request: Request) -> Answer:
    """What is left of each quota, and the periods that end next."""
    search, size = request.query.get("search", ""), pagination.size(request)
    async with request.reading() as conn:
        found = await organizations.listed(conn, after=pagination.after(request), search=search, limit=size + 1)
        ahead = await money.renewals(conn) if not search else []
    values: dict[str, Any] = {
        "rows": found[:size],
        "pages": pagination.pages(request, found[size - 1].id if len(found) > size else None),
        "search": search,
        "renewals": ahead,
        "states": words.ORGANIZATION_STATES,
    }
    return Page(template="money/plans.html", values=values)


async def show_rates(request: Request) -> Answer:
    """Current and missing prices of both channels."""
    async with request.reading() as conn:
        validity, cards = await money.validity(conn), await money.cards(conn)
    values = {
        "validity": validity,
        "categories": words.BILLING_CATEGORIES,
        "missing": [one for one in validity if one.is_missing],
        "cards": [one for one in cards if one.kind == "cost"],
        "lists": [one for one in cards if one.kind == "price"],
        "may_change": request.may(permission=MONEY_CHANGE),
    }
    return Page(template="money/rates.html", values=values)
