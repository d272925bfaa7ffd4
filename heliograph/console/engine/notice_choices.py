"""How an operator is notified of checks that are not ok and of what awaits a decision."""

from __future__ import annotations

from heliograph.mail import outbox
from heliograph.notices.kinds import OWN_WAYS
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.people.operators import noticing

HERE = "/console/notices/choices"


def _seen(request: Request) -> list[str]:
    """The kinds that the reader's role is notified of."""
    return [kind for kind in noticing.KINDS if noticing.sees(request.operator.role, kind)]


async def show(request: Request) -> Answer:
    """The reader's choices."""
    async with request.reading() as conn:
        chosen = await noticing.get(conn, user_id=request.operator.user_id)
    known = noticing.ways(chosen)
    values = {
        "own": True,
        "operator": True,
        "action": HERE,
        "was": "",
        "ways": [(way, request.text(words.NOTICE_WAYS[way])) for way in OWN_WAYS],
        "rows": [
            (kind, request.text(words.OPERATOR_NOTICES[kind]), [(way, way in known[kind]) for way in OWN_WAYS])
            for kind in _seen(request)
        ],
        "differs": known != noticing.USUAL,
        "sends_mail": outbox.of(request.services.settings) is not None,
    }
    return Page(template="notice_choices.html", values=values)


async def choose(request: Request) -> Answer:
    """Save the choices, or return to the defaults."""
    as_usual = "usual" in request.form
    ways = {
        kind: None if as_usual else {way for way in OWN_WAYS if request.form.get(f"{kind} {way}")}
        for kind in _seen(request)
    }
    async with request.writing() as conn:
        await noticing.choose(conn, request.principal, user_id=request.operator.user_id, ways=ways)
    request.services.sessions.forget(request.token)
    return Redirect(location=HERE, notice=request.text("Saved."))
