"""D6d Opt-outs: who may not be written to and why; the organization's own keywords and replies."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from heliograph.accounts import organizations
from heliograph.accounts.organizations import Organization
from heliograph.base import naming
from heliograph.base.crypto import Key
from heliograph.base.database import cursor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.base.ids import uuid_in
from heliograph.consent import keywords, optouts
from heliograph.consent.optouts import NotYoursToLift, OptOut
from heliograph.dashboard import exporting, listing
from heliograph.dashboard.audience import lists, words
from heliograph.overview.exports.kinds import OptOuts
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.forms import leaving
from heliograph.pages.lists import pagination
from heliograph.pages.pieces import reply_form
from heliograph.pages.pieces.reply_form import KINDS, REPLY_LANGUAGES, reply_of, words_of
from heliograph.pages.requests import Request
from heliograph.people import policy
from heliograph.people.roles import CONTENT
from heliograph.sms.accepting import encoding
from heliograph.sms.received import replies

WRITE = "contacts:write"
COLLECTION = "opt-outs of a page"
LONGEST_REASON = 200
HERE = "/contacts/opt-outs"


class Reply(msgspec.Struct, frozen=True):
    """The reply to one keyword."""

    kind: str
    #: The organization's own text; None: the default.
    own: str | None
    default: str
    #: What a handset receives; empty: nothing.
    shown: str
    segments: int


async def show_list(request: Request) -> Answer:
    """A page of opt-outs, newest first, or that of a single number."""
    searched = request.query.get("q", "").strip()[:100]
    return Page(template="audience/opt_outs.html", values=await _listed(request, searched, {}))


async def add(request: Request) -> Answer:
    """Opt out somebody who asked for it by other means than STOP."""
    typed = {name: request.form.get(name, "").strip() for name in ("phone", "reason")}

    async def work(conn: Connection) -> str:
        actor, wrong = request.acting("live"), Problems()
        with wrong.gathering():
            await optouts.find(conn, actor, phone=typed["phone"])
        with wrong.gathering():
            _reason(typed["reason"])
        wrong.report()
        return (await optouts.add(conn, actor, **typed)).recipient

    try:
        await request.once(work)
    except Invalid as refusal:
        return refused("audience/opt_outs.html", _form_refusal(refusal), await _listed(request, "", typed))
    said = request.text("They get no more messages.")
    return Redirect(location=_to_contact(request) or request.to(HERE), notice=said)


async def lift(request: Request) -> Answer:
    """Lift an opt-out that the organization itself had recorded."""
    phone, reason = request.form.get("phone", ""), request.form.get("reason", "").strip()
    back = _to_contact(request) or request.to(HERE)

    async def work(conn: Connection) -> str:
        if not naming.is_readable(reason):
            raise Invalid(("reason", "required", "Give a reason: it is kept in the audit log."))
        return (await optouts.remove(conn, request.acting("live"), phone=phone, reason=_reason(reason))).recipient

    try:
        await request.once(work)
    except Invalid as refusal:
        one = _form_refusal(refusal).details["fields"][0]
        return Redirect(location=back, notice=request.text(one["message"]), is_refusal=True)
    except NotYoursToLift as refusal:
        return Redirect(location=back, notice=request.text(refusal.message), is_refusal=True)
    except NotFound:
        return Redirect(location=back, notice=request.text("This number has not opted out."), is_refusal=True)
    return Redirect(location=back, notice=request.text("They can be messaged again."))


async def export(request: Request) -> Answer:
    """Export all of them."""
    form: Literal["csv", "jsonl"] = "jsonl" if lists.as_json(request) else "csv"
    wanted = OptOuts(form=form, delimiter=exporting.separator(request))
    return await exporting.ask(request, request.acting("live"), wanted)


async def show_words(request: Request) -> Answer:
    """The organization's own keywords for STOP, and the replies to keywords."""
    async with request.reading() as conn:
        found = await organizations.get(conn, id=request.acting("live").organization_id)
    return Page(template="audience/opt_out_words.html", values=_words(found, found, reply_form.shown(found)))


async def change_words(request: Request) -> Answer:
    """Change keywords and replies; "preview" shows what a handset would receive and changes nothing."""
    organization_id = request.acting("live").organization_id
    async with request.reading() as conn:
        found = await organizations.get(conn, id=organization_id)
    given = {name: text.strip() for name, text in request.form.items()}
    typed = leaving.typed(given, reply_form.FIELDS, reply_form.shown(found))
    chosen = {f"{kind}_reply": reply_of(typed, kind) for kind in KINDS}
    listed = words_of(typed["opt_out_words"])
    language = typed["reply_language"] or None
    known = language if language in organizations.REPLY_LANGUAGES else None
    wanted = msgspec.structs.replace(found, reply_language=known, **chosen)
    if request.form.get("do") == "preview":
        return Page(template="audience/opt_out_words.html", values=_words(found, wanted, typed))

    async def work(conn: Connection) -> str:
        changed = await policy.configure(
            conn,
            request.acting("live"),
            opt_out_words=listed,
            stop_reply=chosen["stop_reply"],
            start_reply=chosen["start_reply"],
            help_reply=chosen["help_reply"],
            reply_language=language,
        )
        return str(changed.id)

    try:
        await request.once(work)
    except Invalid as refusal:
        return refused("audience/opt_out_words.html", _form_refusal(refusal), _words(found, wanted, typed))
    return Redirect(location=request.to(f"{HERE}/words"), notice=request.text("Saved."))


def _words(known: Organization, one: Organization, typed: dict[str, str]) -> dict[str, object]:
    """`known`: the current organization; `one`: with the typed changes."""
    made = []
    for kind in KINDS:
        own = getattr(one, f"{kind}_reply")
        default = replies.text_of(kind, None, one.name, one.country, one.reply_language)
        shown = replies.text_of(kind, own, one.name, one.country, one.reply_language)
        segments = encoding.count(shown, smart=one.smart_encoding, accents=one.replace_accents)[1] if shown else 0
        made.append(Reply(kind, own, default, shown, segments))
    return {
        "replies": made,
        "typed": typed,
        "was": leaving.written(reply_form.shown(known)),
        "standard": sorted(keywords.STOP),
        "languages_offered": [(one, REPLY_LANGUAGES[one]) for one in organizations.REPLY_LANGUAGES],
    }


async def _listed(request: Request, searched: str, typed: dict[str, str]) -> dict[str, object]:
    actor = request.acting("live")
    limit = pagination.size(request)
    problem, is_first = "", True
    key = request.services.cursor_key
    more: list[tuple[OptOut, str]] = []
    async with request.reading() as conn:
        if searched:
            try:
                found = await optouts.find(conn, actor, phone=searched)
                rows = [] if found is None else [found]
            except Invalid:
                rows, problem = (
                    [],
                    request.text("This is not a phone number with a country code, such as +258841234567."),
                )
        else:
            after = _position(request, key)
            is_first = after is None
            more = await optouts.list_page(conn, actor, after=after, limit=limit + 1)
            rows = [one for one, _ in more[:limit]]
    older = None
    if len(more) > limit:
        one, person = more[limit - 1]
        position = [one.since.isoformat(), person]
        older = cursor.encode(key, position, organization_id=actor.organization_id, collection=COLLECTION, filters={})
    return {
        "q": searched,
        "problem": problem,
        "rows": rows,
        "columns": listing.columns(request, "opt-outs"),
        "whole": request.may(permission=CONTENT) or request.may(WRITE, mode="live"),
        "may_write": request.may(WRITE, mode="live"),
        "typed": {"phone": "", "reason": "", **typed},
        "older": None if older is None else request.to(HERE, limit=request.query.get("limit"), after=older),
        "first": request.to(HERE),
        "is_first": is_first,
    }


def _position(request: Request, key: Key) -> tuple[datetime, str] | None:
    given = request.query.get("after")
    if not given:
        return None
    try:
        since, person = cursor.decode(
            key, given, organization_id=request.acting("live").organization_id, collection=COLLECTION, filters={}
        )
    except Invalid:
        return None
    return datetime.fromisoformat(since), person


def _to_contact(request: Request) -> str | None:
    """The page of the contact whose form this is; None: the form belongs to the list."""
    id = uuid_in(request.form.get("contact", ""))
    return None if id is None else request.to(f"/contacts/{id}")


def _reason(text: str) -> str:
    if len(text) > LONGEST_REASON:
        raise Invalid(("reason", "length", "A reason can have at most 200 characters."))
    return text


def _form_refusal(refusal: Invalid) -> Invalid:
    """The rule's refusals in the form's wording."""
    return Invalid(
        *(
            (
                one["field"],
                one["issue"],
                one["message"]
                if one["issue"] in ("required", "blank")
                else words.OPT_OUT_FORM.get(one["field"], one["message"]),
            )
            for one in refusal.details["fields"]
        )
    )
