"""O10 Queue and workers: what waits, by kind, line and organization; holds, made and released here."""

from __future__ import annotations

from typing import Any

from heliograph.accounts import organizations
from heliograph.base.errors import Invalid, NotFound
from heliograph.overview.installation import now
from heliograph.pages.answers import Answer, Elsewhere, Shown, refused
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import CARRIAGE_CHANGE
from heliograph.queue import holds
from heliograph.queue.holds import OUTGOING, Selection
from heliograph.sms.dispatch import suppliers

HERE = "/console/queue"
#: Lines of the queue that are shown, the largest first.
LINES = 100


async def show(request: Request) -> Answer:
    """Work that waits, workers, and what is held."""
    async with request.reading() as conn:
        waiting = await holds.summary(conn, Selection(), limit=LINES)
        seen = {"workers": await now.workers(conn), "holds": await holds.list_all(conn)}
    values = {"waiting": waiting, "now": seen, "may_change": request.may(permission=CARRIAGE_CHANGE)}
    return Shown(template="engine/queue_live.html" if request.is_fragment else "engine/queue.html", values=values)


async def show_hold(request: Request) -> Answer:
    """The form for a hold."""
    return Shown(template="engine/queue_hold.html", values=_typed(request, request.query))


async def hold(request: Request) -> Answer:
    """Hold work until it is released; nothing of it is lost."""
    form = request.form
    kind, reason = form.get("kind", ""), form.get("reason", "").strip()
    try:
        if kind not in ("", *OUTGOING):
            raise Invalid(("kind", "enum", "There is no such kind of work."))
        if not 1 <= len(reason) <= holds.LONGEST_REASON:
            raise Invalid(("reason", "length", "Say why, in at most 500 characters: whoever finds the hold reads it."))
        async with request.writing() as conn:
            of, line = form.get("organization", "").strip(), form.get("supplier", "").strip()
            which = Selection(
                kinds=(kind,) if kind else OUTGOING,
                organization_id=(await organizations.find(conn, reference=of)).id if of else None,
                line=await suppliers.id_of(conn, line) if line else None,
            )
            _, leased = await holds.hold(conn, which, reason=reason, by=request.who)
    except Invalid as refusal:
        return refused("engine/queue_hold.html", refusal, _typed(request, form))
    except NotFound as missing:
        field = "supplier" if missing.details.get("resource") == "supplier" else "organization"
        return refused("engine/queue_hold.html", Invalid((field, "unknown", missing.message)), _typed(request, form))
    said = request.text("It is held.")
    if leased:
        said += " " + request.speech.count(
            "%(num)s row is with a worker already and still goes out.",
            "%(num)s rows are with workers already and still go out.",
            leased,
        )
    return Elsewhere(location=HERE, notice=said)


async def release(request: Request) -> Answer:
    """End a hold: what it held goes out."""
    async with request.writing() as conn:
        ended = await holds.release(conn, Selection(), id=request.id(), by=request.who)
    if not ended:
        raise NotFound
    return Elsewhere(location=HERE, notice=request.text("Released: it goes out now."))


def _typed(request: Request, given: dict[str, str]) -> dict[str, Any]:
    names = ("kind", "organization", "supplier", "reason")
    return {"kinds": OUTGOING, **{name: given.get(name, "") for name in names}}
