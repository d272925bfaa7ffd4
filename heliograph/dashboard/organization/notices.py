"""The bell: what needed somebody's eye in the last 90 days, newest first; what is new to the reader is marked."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.errors import Invalid
from heliograph.notices import reading
from heliograph.notices.kinds import KINDS
from heliograph.notices.reading import Noticed
from heliograph.pages import words
from heliograph.pages.answers import Answer, Elsewhere, Shown
from heliograph.pages.pieces import leafing
from heliograph.pages.requests import Request
from heliograph.why.words import Kind, why


class Line(msgspec.Struct, frozen=True):
    """A notice as it is shown: what happened, what else is to be said, and where more is seen."""

    notice: Noticed
    title: str
    more: str
    link: str


def seen_by(request: Request) -> list[str]:
    """The kinds that the reader's role is told of."""
    return [name for name, kind in KINDS.items() if request.may(kind.scope, kind.permission, mode="live")]


async def show(request: Request) -> Answer:
    """A page of notices."""
    limit = leafing.size(request)
    async with request.reading() as conn:
        found = await reading.list_page(
            conn,
            request.acting("live"),
            user_id=request.person.user_id,
            kinds=seen_by(request),
            after=leafing.after(request),
            limit=limit,
        )
    rows = found[:limit]
    lines = [_line(request, one) for one in rows]
    values: dict[str, Any] = {
        "lines": lines,
        "has_new": any(one.is_new for one in rows),
        "newest": rows[0].id if rows else None,
        "days": reading.DAYS,
        "is_first": leafing.after(request) is None,
        "pages": leafing.pages(request, rows[-1].id if len(found) > limit else None),
    }
    return Shown(template="organization/notices.html", values=values)


async def read(request: Request) -> Answer:
    """The reader has seen what stands on the page, and what is older."""
    try:
        up_to = UUID(request.form.get("up_to", ""))
    except ValueError:
        raise Invalid(("up_to", "format", "This form is not ours. Reload the page.")) from None
    async with request.writing() as conn:
        await reading.read(conn, request.acting("live"), user_id=request.person.user_id, up_to=up_to)
    request.services.sessions.forget(request.token)
    return Elsewhere(location=request.to("/notices"))


def _line(request: Request, one: Noticed) -> Line:
    where = KINDS[one.kind].path.format(object=one.object)
    return Line(one, _title(request, one), _more(request, one), request.to(where, mode=one.mode))


def _title(request: Request, one: Noticed) -> str:
    text, number, name = request.text, request.speech.number, one.name
    match one.kind:
        case "campaign.completed":
            return text("The campaign “%(name)s” is finished.", name=name)
        case "campaign.paused":
            return text("The campaign “%(name)s” stands still.", name=name)
        case "campaign.failed":
            return text("The campaign “%(name)s” failed.", name=name)
        case "webhook.failing":
            return text("Webhooks to %(url)s fail, one after the other.", url=name)
        case "webhook.disabled":
            return text("The endpoint %(url)s was disabled.", url=name)
        case "import.finished":
            return text("The import of “%(name)s” is finished.", name=name)
        case "sender.approved":
            return text("The sender ID “%(name)s” was approved.", name=name)
        case "sender.rejected":
            return text("The sender ID “%(name)s” was rejected.", name=name)
        case "sender.suspended":
            return text("The sender ID “%(name)s” was suspended.", name=name)
        case "template.rejected":
            return text("The template “%(name)s” was rejected.", name=name)
        case "template.paused":
            return text("The template “%(name)s” is paused: people did not like what it said.", name=name)
        case "template.disabled":
            return text("The template “%(name)s” was disabled.", name=name)
        case "number.quality":
            return text("The quality of the number %(number)s has fallen.", number=name)
        case "key.ending":
            return text("The key “%(name)s” ends soon.", name=name)
        case "export.ready":
            return text("The file “%(name)s” is ready.", name=name)
        case "export.failed":
            return text("The file “%(name)s” could not be written.", name=name)
        case "key.network":
            return text("The key “%(name)s” was used from a network that is new.", name=name)
        case "sign_in.new":
            return text("Somebody signed in as you in a browser that is new.")
        case "member.joined":
            return text("%(name)s has joined the team.", name=name)
        case "usage.day":
            return text("More messages were sent in a day than the alert allows.")
        case "wallet.low":
            return text("Less is left in the wallet than its alert asks for.")
        case _:
            share = number(int(one.object)) if one.object.isdigit() else "–"
            return text("%(share)s %% of the quota is used.", share=share)


def _more(request: Request, one: Noticed) -> str:
    text, number, facts = request.text, request.speech.number, one.facts
    reason = str(facts.get("reason") or "")
    if one.kind.startswith("campaign."):
        return _said(request, "campaign", reason)
    if one.kind == "webhook.disabled":
        return _said(request, "endpoint", reason)
    if one.kind == "import.finished":
        return text(
            "%(created)s new, %(updated)s changed, %(rejected)s rejected.",
            **{name: number(int(facts.get(name, 0))) for name in ("created", "updated", "rejected")},
        )
    if one.kind == "export.ready":
        rows = int(facts.get("rows", 0))
        return request.speech.count("%(num)s row.", "%(num)s rows.", rows)
    if one.kind == "quota.used":
        left, total = (number(int(facts.get(name, 0))) for name in ("left", "total"))
        return text("%(left)s of %(total)s messages are left.", left=left, total=total)
    if one.kind == "key.network":
        network = facts.get("network") or "–"
        return text("From %(network)s; if it was none of your programs, rotate the key.", network=network)
    if one.kind == "sign_in.new":
        return text("From %(address)s; if it was not you, change your password.", address=facts.get("address") or "–")
    if one.kind == "member.joined":
        return text(words.ROLES.get(str(facts.get("role")), ""))
    if one.kind == "usage.day":
        messages, above = (number(int(facts.get(name, 0))) for name in ("messages", "above"))
        return text("%(messages)s on %(day)s, more than %(above)s.", messages=messages, day=one.object, above=above)
    if one.kind == "number.quality":
        return text("Meta rates it red.") if facts.get("rating") == "red" else text("Meta rates it yellow.")
    if one.kind == "key.ending":
        return request.speech.moment(datetime.fromisoformat(str(facts["until"])))
    return reason


def _said(request: Request, kind: Kind, reason: str) -> str:
    known = why(kind, reason)
    return "" if known is None else known.words(request.speech.language).customer
