"""Values shown with a campaign's form: its choices, what is left to spend, what it would cost."""

from __future__ import annotations

from typing import Any

from heliograph.accounts import organizations, quota, send_defaults, spending
from heliograph.base.database.pool import Connection
from heliograph.base.ids import just_above, uuid_in
from heliograph.campaigns import template
from heliograph.campaigns.approval import rule
from heliograph.campaigns.channels import sms, whatsapp
from heliograph.campaigns.filling import COLUMNS, LONGEST
from heliograph.campaigns.views.preview import Preview
from heliograph.contacts.imports import drafts
from heliograph.contacts.imports.drafts import Draft
from heliograph.dashboard import choosing
from heliograph.dashboard.audience import words
from heliograph.dashboard.audience.composing.meaning import Given, entry_of
from heliograph.pages.requests import Request
from heliograph.pages.words import GUARD_CLASSES
from heliograph.sms.accepting import sender_ids
from heliograph.sms.by_hand import own_numbers
from heliograph.whatsapp import library, number_states

#: Imports offered, and states of those that have not imported all of their file.
IMPORTS, UNFINISHED = 50, {"stopped": "Stopped", "running": "Running"}


async def values(
    request: Request, typed: dict[str, str], seen: Preview | None = None, given: Given | None = None
) -> dict[str, Any]:
    """The values that the form's template needs."""
    shown: dict[str, Any] = {"typed": typed, "seen": seen, "zone": request.locale.zone, "longest": LONGEST}
    shown["national"] = [] if given is None else given.national
    gaps = [] if seen is None else seen.gaps
    shown["gaps"] = [(one, request.text(words.CAMPAIGN_UNKNOWN[one.column])) for one in gaps]
    shown["lookalikes"] = [] if given is None or given.filled is not None else template.lookalikes(given.text)
    pace = None if given is None else given.pace
    shown["lasts"] = 60 * seen.would / pace if seen is not None and pace else None
    async with request.reading() as conn:
        defaults = await send_defaults.get(conn, organization_id=request.actor.organization_id)
        home = (await organizations.get(conn, id=request.actor.organization_id)).country
        own = await own_numbers.get(conn, user_id=request.person.user_id)
        imports = await _imports(request, conn, typed["import"]) if request.may("contacts:write") else []
        if typed["channel"] == "whatsapp":
            shown |= await _whatsapp_values(request, conn, typed)
        else:
            shown |= await _sms_values(request, conn, typed)
        limit = defaults.approval_above if request.mode == "live" else None
        above = None if limit is None else await _exceeded(request, conn, limit, seen, given)
    shown["home"] = request.locale.country(home) if home else ""
    shown["imports"] = imports
    shown["above"] = above
    scope = "whatsapp:send" if typed["channel"] == "whatsapp" else "sms:send"
    shown["own"] = own.phone if request.may(scope) else None
    shown["may_prove"] = request.may("sms:send", mode="live")
    shown["cost"] = 0 if seen is None or request.mode == "test" else seen.would
    return shown


async def _imports(request: Request, conn: Connection, chosen: str) -> list[tuple[str, str]]:
    """Imports to choose from, except running ones, whose people a check cannot count, and the chosen one. If that is
    gone, none is chosen: a list without it would show another one, and the campaign would go to those people."""
    listed = await drafts.list_page(conn, request.actor, after=None, limit=IMPORTS)
    offered = [one for one in listed if one.is_audience and one.state != "running"]
    id = uuid_in(chosen)
    if id is not None and all(one.id != id for one in offered):
        found = await drafts.list_page(conn, request.actor, after=just_above(id), limit=1)
        offered = [*(one for one in found if one.id == id and one.is_audience), *offered]
    options = [(str(one.id), _called(request, one)) for one in offered]
    is_gone = chosen and all(one.id != id for one in offered)
    return [("", request.text("Choose one")), *options] if is_gone else options


async def _exceeded(
    request: Request, conn: Connection, above: int, seen: Preview | None, given: Given | None
) -> int | None:
    """The limit of recipients without approval, if the campaign exceeds it: counted as the rule counts them, with those
    who will be skipped, but without entries that are not numbers."""
    if seen is None or given is None:
        return None
    recipients = seen.found - seen.excluded - given.unread
    if recipients <= above and seen.is_more:  # the preview did not count them all
        recipients = await rule.estimate(
            conn,
            request.actor.organization_id,
            mode=request.mode,
            tags=given.tags,
            match_mode=given.match,
            imported=given.imported,
            most=above + 1,
        )
    return above if recipients > above else None


def _called(request: Request, one: Draft) -> str:
    """Its file and time; and that it is not finished: only some of the people in its file are its people so far."""
    said = [one.file, request.locale.moment(one.started_at)]
    if one.state in UNFINISHED:
        said.append(request.text(UNFINISHED[one.state]))
    return " · ".join(said)


async def _sms_values(request: Request, conn: Connection, typed: dict[str, str]) -> dict[str, Any]:
    listed = await sender_ids.list_all(conn, request.actor)
    balance = await quota.get(conn, request.actor.organization_id)
    today = await spending.remaining(conn, request.actor.organization_id)
    approved = [one for one in listed if one.status == "approved"]
    # That of a copy or a draft, even if it is no longer approved, which is said when the campaign is created: without
    # it, the default would seem to be chosen.
    usable = [one for one in listed if one in approved or str(one.id) == typed["sender"]]
    return {
        # Of the usual one, nothing is said.
        "class_name": None if typed["class"] == sms.USUAL_CLASS else GUARD_CLASSES.get(typed["class"]),
        "senders": approved,
        "sender_options": [("", request.text("the default")), *((str(one.id), one.value) for one in usable)],
        "left": balance.remaining,
        #: Segments left under today's limit; None: there is no limit.
        "left_today": today.get("organization") if request.mode == "live" else None,
        "places": template.PLACES,
    }


async def _whatsapp_values(request: Request, conn: Connection, typed: dict[str, str]) -> dict[str, Any]:
    numbers = await number_states.list_all(conn, request.actor)
    entry = await entry_of(request, conn, typed)
    chosen = None if entry is None else entry.template
    offered = await choosing.offered(conn, request, category=whatsapp.CATEGORY, chosen=chosen)
    sources = [(name, request.text(words.CAMPAIGN_COLUMNS[name])) for name in COLUMNS]
    lines = [(str(one.number.id), one.number.display_phone_number) for one in numbers]
    # One that was removed: another one must not seem to be chosen.
    if lines and typed["number"] and typed["number"] not in dict(lines):
        lines.insert(0, ("", request.text("Choose one")))
    return {
        "numbers": lines,
        "templates": [("", request.text("Choose one")), *offered],
        "template": typed["template"] if chosen is None else str(chosen.id),
        "entry": entry,
        "slots": [] if entry is None else library.slots(entry.layout),
        "sources": [*sources, ("text", request.text("the same text for everybody"))],
    }
