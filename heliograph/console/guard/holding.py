"""The guard's findings: held number ranges, with reasons and waiting messages; they are released or withdrawn."""

from __future__ import annotations

from typing import Any

from heliograph.base.database import clock
from heliograph.base.errors import Invalid
from heliograph.base.sentences import Sentence, joined, kept
from heliograph.guard import holds, rules
from heliograph.guard.holds import Hold
from heliograph.guard.windows import LISTED, RULES
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.pieces import confirming
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import ORGANIZATIONS_CHANGE, TRAFFIC_CHANGE
from heliograph.sms.dispatch import held

HERE = "/console/guard"
#: Ranges shown, the newest, and organizations with rules of their own.
SHOWN, ORGANIZATIONS = 200, 200


async def show(request: Request) -> Answer:
    """What is held, what was found recently, organizations' rules, and the criteria."""
    async with request.reading() as conn:
        found = await holds.list_all(conn, limit=SHOWN)
        settled = await rules.list_all(conn, limit=ORGANIZATIONS)
    today = clock.midnight(clock.now())
    begun = [one for one in found if one.begun_at >= today]
    named = {name: request.text(said) for name, said, _ in words.GUARD_POLICIES}
    values: dict[str, Any] = {
        "lines": [(one, range_of(request, one), causes(one)) for one in found],
        "standing": sum(1 for one in found if one.stands and one.policy_now != "monitor"),
        "begun": len(begun),
        "met": sum(one.met for one in begun),
        "waiting": sum(one.waiting for one in found),
        "is_all": len(found) < SHOWN,
        "settled": [(one, organization, _limits(request, one.limits)) for one, organization in settled],
        "policies": named,
        "rules": [kept(said) for said in RULES.values()],
        "listed": sorted(request.locale.country(one) for one in LISTED),
        "may_change": request.may(permission=TRAFFIC_CHANGE),
        "may_settle": request.may(permission=ORGANIZATIONS_CHANGE),
    }
    return Page(template="guard/guard_live.html" if request.is_fragment else "guard/guard.html", values=values)


async def release(request: Request) -> Answer:
    """Send the waiting messages, and exempt the range for a day."""
    async with request.writing() as conn:
        _, queued = await holds.release(conn, request.id(), by=request.principal)
    said = request.locale.count("%(num)s message is being sent now.", "%(num)s messages are being sent now.", queued)
    if not queued:
        said = request.text("Nothing was waiting because of it. The range is left alone for a day.")
    return Redirect(location=HERE, notice=said)


async def show_withdraw(request: Request) -> Answer:
    """What a withdrawal would cancel, before it does."""
    return Page(template="guard/withdraw.html", values=await _one(request))


async def withdraw(request: Request) -> Answer:
    """Cancel and refund the waiting messages; the range stays held until its time is over."""
    values = await _one(request)
    try:
        confirming.check(request, request.text("withdraw"))
    except Invalid as refusal:
        return refused("guard/withdraw.html", refusal, values)
    async with request.writing() as conn:
        canceled = await held.withdraw(conn, request.id(), at=clock.now(), by=request.principal)
    said = request.locale.count(
        "%(num)s message is canceled and refunded.", "%(num)s messages are canceled and refunded.", canceled
    )
    return Redirect(location=HERE, notice=said)


def range_of(request: Request, one: Hold) -> str:
    """The numbers concerned; a single one without most of its digits."""
    if one.kind == "class":
        return request.text(words.GUARD_CLASSES[one.range])
    if one.kind == "country":
        return request.locale.country(one.range)
    return f"+{one.range}…" if one.kind == "block" else f"…{one.range[-4:]}"


def causes(one: Hold) -> Sentence:
    """The rules that together caused it."""
    return joined([kept(RULES[rule]) for rule in one.rules], "; ")


def _limits(request: Request, limits: dict[str, int]) -> list[tuple[str, int]]:
    return [(request.text(words.GUARD_CLASSES[name]), limits[name]) for name in words.GUARD_CLASSES if name in limits]


async def _one(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        one = await holds.get(conn, request.id())
    return {"one": one, "range": range_of(request, one), "because": causes(one)}
