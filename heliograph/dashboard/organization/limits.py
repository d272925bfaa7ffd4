"""Limits: what may be sent per day, and how unusually many messages to similar numbers are treated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from heliograph.accounts import spending
from heliograph.accounts.api_keys import issued
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.classes import kinds
from heliograph.guard import holds, rules
from heliograph.guard.holds import Hold
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.forms import figures, guard_rules, leaving
from heliograph.pages.requests import Request
from heliograph.people import policy

TEMPLATE = "organization/limits.html"
#: Number ranges shown, the newest.
SHOWN = 20


async def show(request: Request) -> Answer:
    """The limits with today's usage, and number ranges detected recently."""
    return Page(template=TEMPLATE, values=await _values(request))


async def change_limit(request: Request) -> Answer:
    """Set or lift the limit of the organization, or of one key."""
    form = request.form

    async def work(conn: Connection, actor: Actor) -> None:
        segments, key_id = None, None
        if not form.get("lift"):
            wrong = Invalid(("segments", "range", ""))
            segments = figures.within(form.get("segments", ""), wrong, least=1, most=spending.MOST)
            if segments is None:
                raise wrong
        try:
            key_id = UUID(form["scope"]) if form.get("scope") else None
            await policy.limit_spending(conn, actor, segments=segments, key_id=key_id)
        except (ValueError, NotFound):
            raise Invalid(("scope", "enum", "")) from None

    return await _changed(request, work)


async def change_guard(request: Request) -> Answer:
    """Change how suspicious messages are treated, which are never held, and how many of a class are not suspicious."""

    async def work(conn: Connection, actor: Actor) -> None:
        known = await rules.rules_of(conn, actor.organization_id)
        typed = leaving.typed(request.form, guard_rules.FIELDS, guard_rules.shown(known))
        wrong, allowed = Problems(), dict[str, int | None]()
        for name in kinds.NAMES:
            field = f"limit_{name}"
            with wrong.gathering():
                refused = Invalid((field, "range", ""))
                allowed[name] = figures.within(typed[field], refused, least=1, most=rules.MOST_LIMIT)
        safe = guard_rules.ranges(typed["safe"])
        with wrong.gathering():
            await policy.change_guard(conn, actor, policy=typed["policy"] or None, safe=safe, limits=allowed)
        wrong.report()

    return await _changed(request, work)


async def _changed(request: Request, work: Callable[[Connection, Actor], Awaitable[None]]) -> Answer:
    try:
        async with request.writing() as conn, conn.transaction():
            await work(conn, request.acting("live"))
    except Invalid as refusal:
        return refused(TEMPLATE, form_errors(refusal, words.LIMITS_FORM), await _values(request))
    return Redirect(location=request.to("/settings/limits"), notice=request.text("The settings are saved."))


async def _values(request: Request) -> dict[str, Any]:
    actor = request.acting("live")
    async with request.reading() as conn:
        limits = await spending.limits(conn, actor.organization_id)
        keys = await issued.list_all(conn, actor)
        known = await rules.rules_of(conn, actor.organization_id)
        found = await holds.list_all(conn, organization_id=actor.organization_id, limit=SHOWN)
    names = {one.id: f"{one.name} …{one.last4}" for one in keys}
    form = request.form
    text = request.text
    guard = guard_rules.shown(known)
    typed = leaving.typed(form, guard_rules.FIELDS, guard) if "safe" in form else guard
    return {
        "was": leaving.written(guard),
        "limits": [(one, names.get(one.key_id) if one.key_id else None) for one in limits],
        "scopes": [
            ("", text("The whole organization")),
            *((str(one.id), names[one.id]) for one in keys if one.status in ("active", "suspended")),
        ],
        "scope": form.get("scope", ""),
        "segments": form.get("segments", ""),
        "policies": [(name, text(called), text(more)) for name, called, more in words.GUARD_POLICIES],
        "policy": typed["policy"],
        "safe": typed["safe"],
        "allowed": [(f"limit_{name}", text(words.GUARD_CLASSES[name]), typed[f"limit_{name}"]) for name in kinds.NAMES],
        "labels": guard_rules.labels(request),
        "holds": [(one, _range(request, one)) for one in found],
    }


def _range(request: Request, one: Hold) -> str:
    """The numbers concerned; a single one without most of its digits."""
    if one.kind == "class":
        return request.text(words.GUARD_CLASSES[one.range])
    if one.kind == "country":
        return request.locale.country(one.range)
    return f"+{one.range}…" if one.kind == "block" else f"…{one.range[-4:]}"
