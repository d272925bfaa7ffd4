"""Notification preferences: a table of kinds and channels, one's own and the organization's."""

from __future__ import annotations

from typing import Any

from heliograph.dashboard.organization.notices import seen_by
from heliograph.mail import outbox
from heliograph.notices.kinds import KINDS, OWN_WAYS, WAYS
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.forms import leaving
from heliograph.pages.requests import Request
from heliograph.people.noticing import choices
from heliograph.people.noticing.choices import Choices

TEMPLATE = "notice_choices.html"
OWN, ALL = "/notices/choices", "/settings/notices"


async def show_own(request: Request) -> Answer:
    """The reader's choices, for the kinds that their role is notified of."""
    return Page(template=TEMPLATE, values=await _values(request, own=True))


async def choose_own(request: Request) -> Answer:
    """Set one's own choices, or return to the organization's."""
    kinds = seen_by(request)
    async with request.writing() as conn:
        known = await choices.get(conn, request.acting("live"))
        usual = {kind: known.ways(kind) & set(OWN_WAYS) for kind in kinds}
        given = {kind: {way for way in OWN_WAYS if request.form.get(f"{kind} {way}")} for kind in kinds}
        as_usual = "usual" in request.form
        ways = {kind: None if as_usual or given[kind] == usual[kind] else given[kind] for kind in kinds}
        await choices.choose(conn, request.acting("live"), user_id=request.person.user_id, ways=ways)
    request.services.sessions.forget(request.token)
    return Redirect(location=request.to(OWN), notice=request.text("Saved."))


async def show_all(request: Request) -> Answer:
    """The default for members without a choice of their own, and what the organization's endpoints are sent."""
    return Page(template=TEMPLATE, values=await _values(request, own=False))


async def choose_all(request: Request) -> Answer:
    """Set the organization's choices."""
    async with request.writing() as conn:
        now = _shown(await choices.get(conn, request.acting("live")))
        typed = leaving.typed(request.form, now, now)
        ways = {
            kind: None if "usual" in request.form else {way for way in WAYS if typed.get(f"{kind} {way}")}
            for kind in KINDS
        }
        await choices.choose_for_all(conn, request.acting("live"), ways=ways)
    request.services.sessions.forget(request.token)
    return Redirect(location=request.to(ALL), notice=request.text("The settings are saved."))


def _shown(known: Choices) -> dict[str, str]:
    """The current state of the organization's checkboxes: "1" or ""."""
    return {
        f"{kind} {way}": "1" if way in known.ways(kind) else ""
        for kind in KINDS
        for way in WAYS
        if way != "webhook" or not KINDS[kind].is_personal
    }


async def _values(request: Request, *, own: bool) -> dict[str, Any]:
    async with request.reading() as conn:
        user_id = request.person.user_id if own else None
        known = await choices.get(conn, request.acting("live"), user_id=user_id)
    ways = OWN_WAYS if own else WAYS
    kinds = seen_by(request) if own else list(KINDS)
    return {
        "own": own,
        "operator": False,
        "action": OWN if own else ALL,
        "was": "" if own else leaving.written(_shown(known)),
        "ways": [(way, request.text(words.NOTICE_WAYS[way])) for way in ways],
        "rows": [
            (
                kind,
                request.text(words.NOTICES[kind]),
                [
                    (way, way in known.ways(kind)) if way != "webhook" or not KINDS[kind].is_personal else (way, None)
                    for way in ways
                ],
            )
            for kind in kinds
        ],
        "differs": bool(known.own if own else known.organization),
        "sends_mail": outbox.of(request.services.settings) is not None,
    }
