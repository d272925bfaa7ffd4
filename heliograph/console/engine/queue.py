"""Queue and workers: what waits, by kind, line and organization; holds are set and released here."""

from __future__ import annotations

from typing import Any

from heliograph.audit import reasons
from heliograph.base.errors import Invalid, NotFound
from heliograph.console.engine import selecting
from heliograph.overview.installation import now, queued_work
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.pieces import confirming
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import TRAFFIC_CHANGE
from heliograph.queue import holds, waiting, workers
from heliograph.queue.holds import Selection, Withdrawn

HERE = "/console/queue"
WITHDRAW, HOLD = "engine/queue_withdraw.html", "engine/queue_hold.html"
#: Queue lines shown, largest first; organizations whose share is shown.
LINES, ORGANIZATIONS = 100, 10
#: Batches of a thousand that one form withdraws; for more, use the command line or submit it again.
BATCHES = 20


async def show(request: Request) -> Answer:
    """Waiting work, workers, and holds."""
    template = "engine/queue_live.html" if request.is_fragment else "engine/queue.html"
    try:
        async with request.reading() as conn:
            which = await selecting.selection(conn, request.query)
    except Invalid as refusal:
        return refused(template, refusal, await _values(request, Selection()))
    return Page(template=template, values=await _values(request, which))


async def show_withdraw(request: Request) -> Answer:
    """What a withdrawal would cancel, before it does."""
    return await selecting.show(request, WITHDRAW, {})


async def withdraw(request: Request) -> Answer:
    """Cancel work for good: messages are refunded."""
    form = request.form
    try:
        confirming.check(request, request.text("withdraw"))
        async with request.writing() as conn:
            which = await selecting.selection(conn, form)
            request.has_written = True  # each batch is a commit
            done = await queued_work.withdraw(
                conn, which, tried=form.get("tried") == "yes", by=request.principal, most=BATCHES
            )
    except Invalid as refusal:
        return await selecting.wrong(request, WITHDRAW, refusal, {})
    sums = sum(done.values(), Withdrawn())
    said = request.text(
        "%(canceled)s canceled or dropped, %(ended)s ended as unknown, %(left)s left.",
        canceled=request.locale.number(sums.canceled),
        ended=request.locale.number(sums.ended),
        left=request.locale.number(sums.left),
    )
    return Redirect(location=HERE, notice=said, is_refusal=not (sums.canceled or sums.ended))


async def hurry(request: Request) -> Answer:
    """Have queued work run now instead of at its next attempt."""
    async with request.writing() as conn:
        done = await holds.hurry(conn, id=request.id(), by=request.principal)
    said = request.text("It is being sent now.") if done else request.text("It is not waiting, or a worker has it.")
    return Redirect(location=HERE, notice=said, is_refusal=not done)


async def show_hold(request: Request) -> Answer:
    """What a hold would affect, before it is set."""
    given = {"reason": request.query.get("reason", ""), "restored": False}
    return await selecting.show(request, HOLD, given)


async def hold(request: Request) -> Answer:
    """Hold work until it is released; nothing is lost."""
    form = request.form
    reason, restored = reasons.normalized(form.get("reason", "")), form.get("restored") == "yes"
    try:
        if reason is None:
            raise Invalid(("reason", "length", "Give a reason of at most 500 characters, for whoever finds the hold."))
        async with request.writing() as conn:
            which = await selecting.selection(conn, form)
            _, leased = await holds.hold(conn, which, reason=reason, restored=restored, by=request.principal)
    except Invalid as refusal:
        given = {"reason": form.get("reason", ""), "restored": restored}
        return await selecting.wrong(request, HOLD, refusal, given)
    said = request.text("It is held.")
    if leased:
        said += " " + request.locale.count(
            "%(num)s row is already with a worker and is still sent.",
            "%(num)s rows are already with workers and are still sent.",
            leased,
        )
    return Redirect(location=HERE, notice=said)


async def release(request: Request) -> Answer:
    """End a hold: the work that it held runs."""
    async with request.writing() as conn:
        ended = await holds.release(conn, Selection(), id=request.id(), by=request.principal)
    if not ended:
        raise NotFound
    return Redirect(location=HERE, notice=request.text("Released: it is being sent now."))


async def show_drain(request: Request) -> Answer:
    """What draining a worker means, before it begins."""
    wanted = request.id()
    async with request.reading() as conn:
        known = await now.workers(conn)
    one = next((one for one in known if one.id == wanted), None)
    if one is None:
        raise NotFound
    others = sum(other.state == "works" for other in known if other.id != wanted)
    return Page(template="engine/worker_drain.html", values={"one": one, "others": others})


async def drain(request: Request) -> Answer:
    """Have a worker finish its current work, and then exit or stay idle."""
    then: workers.Drain = "stay" if request.form.get("then") == "stay" else "end"
    async with request.writing() as conn:
        name = await workers.drain(conn, str(request.id()), then=then, by=request.principal)
    return Redirect(location=HERE, notice=request.text("%(name)s finishes what it holds.", name=name))


async def resume(request: Request) -> Answer:
    """Have an idle drained worker accept work again."""
    async with request.writing() as conn:
        name = await workers.resume(conn, str(request.id()), by=request.principal)
    return Redirect(location=HERE, notice=request.text("%(name)s takes work again.", name=name))


async def _values(request: Request, which: Selection) -> dict[str, Any]:
    async with request.reading() as conn:
        found = await queued_work.backlog(conn, which, limit=selecting.EVERY, look=waiting.PAGE_LOOK)
        seen = {"workers": await now.workers(conn), "holds": await queued_work.listed(conn)}
        retrying = await waiting.sample(conn, which, only_tried=True)
        first = await waiting.sample(conn, which)
    return selecting.typed(request.query) | {
        "waiting": found.waiting[:LINES],
        "left_out": len(found.waiting) - len(found.waiting[:LINES]),
        "sums": selecting.by_kind_and_line(found.waiting),
        "is_chosen": which != Selection(),
        "is_whole": found.is_whole,
        "is_counted": not any(one.is_more for one in found.waiting),
        "look": waiting.PAGE_LOOK,
        "places": waiting.PLACES,
        "organizations": [one for one in waiting.by_organization(found.waiting) if one.oldest_at][:ORGANIZATIONS],
        "retrying": retrying,
        "first": first,
        "now": seen,
        "may_change": request.may(permission=TRAFFIC_CHANGE),
    }
