"""Look-up suppliers with their queries and costs, the countries where numbers are looked up, and a test look-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from heliograph.audit import reading as audit
from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.networks import asked
from heliograph.networks.asked import MonthlyLookups
from heliograph.pages.answers import Answer, Page, refused
from heliograph.pages.lists.changes import with_changes
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import TRAFFIC_CHANGE
from heliograph.routes import rules
from heliograph.sms.dispatch import suppliers
from heliograph.sms.lookups import accounts, asking, forms
from heliograph.sms.lookups.accounts import Account

HERE = "/console/lookups"
#: Audit log entries shown.
HISTORY = 20


async def show(request: Request) -> Answer:
    """All of them, and the countries where numbers are looked up because a route names a network there."""
    async with request.reading() as conn:
        known = await accounts.load(conn)
        spent = await asked.spent(conn)
        where = asking.countries(await rules.active(conn))
    names = {one.id: one.name for one in known}
    values = {
        "accounts": known,
        "months": [(names.get(one.supplier_id, ""), one) for one in spent],
        "where": [(country, accounts.serving(known, country)) for country in sorted(where)],
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
    return Page(template="lookups/lookups.html", values=values)


async def show_one(request: Request) -> Answer:
    """One of them, with its settings, its figures by month, and who changed what."""
    async with request.reading() as conn:
        one = await find(conn, request.id())
        return Page(template="lookups/lookup.html", values=await _values(request, conn, one))


async def try_once(request: Request) -> Answer:
    """Look a number up now; the supplier charges it, and nothing is stored."""
    typed = request.form.get("to", "").strip()
    async with request.reading() as conn:
        one = await find(conn, request.id())
        values = await _values(request, conn, one) | {"to_try": typed}
    try:
        number = phones.international(typed)
        if number is None:
            raise Invalid(("to", "format", "Enter a number with + and country code, such as +258841234567."))
        network = await asking.try_once(suppliers.seal_key(request.services.settings), one, number)
    except Invalid as refusal:
        return refused("lookups/lookup.html", refusal, values)
    return Page(template="lookups/lookup.html", values=values | {"tried": (number, network)})


async def find(conn: Connection, id: UUID) -> Account:
    """One that has not been removed. Raises NotFound."""
    return await accounts.find(conn, str(id))


async def _values(request: Request, conn: Connection, one: Account) -> dict[str, Any]:
    spent: Sequence[MonthlyLookups] = [line for line in await asked.spent(conn) if line.supplier_id == one.id]
    shown = forms.shown(one)
    return {
        "one": one,
        "settings": [(field, shown[field.name]) for field in forms.fields(one.kind)],
        "months": [("", line) for line in spent],
        "history": with_changes(
            request, (await audit.list_page(conn, audit.Filter(object=str(one.id)), limit=HISTORY)).entries
        ),
        "tried": None,
        "to_try": "",
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
