"""Which failures refund a message to the organization, for the whole installation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.forms import leaving
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import MONEY_CHANGE
from heliograph.sms import refunds

HERE = "/console/refunds"


async def show(request: Request) -> Answer:
    """The failures refunded now."""
    async with request.reading() as conn:
        policy = await refunds.policy(conn)
    values: dict[str, Any] = {
        "classes": list(policy.items()),
        "was": leaving.written(_shown(policy)),
        "always": refunds.UNSENT,
        "may_change": request.may(permission=MONEY_CHANGE),
    }
    return Page(template="money/refunds.html", values=values)


async def change(request: Request) -> Answer:
    """Change them, for messages that fail from now on."""
    async with request.writing() as conn, conn.transaction():
        shown = _shown(await refunds.policy(conn))
        typed = leaving.typed(request.form, shown, shown)
        chosen = {name: typed[f"class_{name}"] == "yes" for name in refunds.CHOICES}
        await refunds.change_policy(conn, chosen, by=request.principal)
    return Redirect(location=HERE, notice=request.text("Saved: it applies to messages that fail from now on."))


def _shown(policy: Mapping[str, bool]) -> dict[str, str]:
    """The current state of the checkboxes."""
    return {f"class_{name}": "yes" if policy[name] else "" for name in refunds.CHOICES}
