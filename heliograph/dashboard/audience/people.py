"""D6a People: search, view, create, change, tag, delete with undo, and export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from uuid import UUID

from heliograph.base import csv_files, phones
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import time_of, uuid_in
from heliograph.campaigns import record
from heliograph.campaigns.audience import MAX_RECIPIENTS, MOST_DAYS
from heliograph.consent import history, optouts
from heliograph.consent.people import names as names_of
from heliograph.contacts import marked, notes, records, search
from heliograph.contacts.records import Contact, ContactAlreadyExists, Entry
from heliograph.dashboard import exporting, listing
from heliograph.dashboard.audience import lists, person_form, words
from heliograph.inbox import threads
from heliograph.inbox.threads import Thread
from heliograph.overview import messages
from heliograph.overview.exports.kinds import Contacts, Tag
from heliograph.pages import words as shared
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.forms import leaving
from heliograph.pages.lists import pagination, ranges
from heliograph.pages.pieces.parts import Parts
from heliograph.pages.requests import Request
from heliograph.people.roles import CONTENT, EXPORT
from heliograph.sending.listing import MessagePage

WRITE = "contacts:write"
FIELDS = ("q", "tag", "match", "country", "opted", "written", "delivered", "times", "range", "from", "to")
#: Fields that do not filter on their own.
HOW = ("match", "times")
#: Messages shown on a person's page, and how many are searched for them.
LATEST, LOOK = 10, 5_000
#: Messages whose campaigns are listed by name.
CAMPAIGNS = 50
#: Opt-outs and opt-ins shown on their page.
STATEMENTS = 50
#: People per query when an audience is collected.
LOOKED = 1_000


async def show_list(request: Request) -> Answer:
    """A page of people, newest first, filtered by the address."""
    kept = lists.kept(request.query, FIELDS)
    limit = pagination.size(request)
    after = uuid_in(request.query.get("after", ""))
    change_id = uuid_in(request.query.get("change", ""))
    async with request.reading() as conn:
        filters, problems = await lists.filters_of(conn, request, kept)
        found = await search.search(conn, request.actor, filters=filters, after=after, limit=limit)
        change = None if change_id is None else await marked.find(conn, request.actor, id=change_id)
        rows = found.contacts[:limit]
        columns = listing.columns(request, "contacts")
        is_told = any(one.name == "written" for one in columns.chosen)
        last = await messages.last_to(conn, request.actor, contacts=[one.id for one in rows]) if is_told else {}
    end = rows[-1].id if len(found.contacts) > limit else found.seen
    limited = {"limit": request.query.get("limit")}
    values = {
        "kept": kept,
        "problem": problems.get("tag", ""),
        "rows": rows,
        "whole": lists.sees_numbers(request),
        "is_filtered": any(kept[name] for name in FIELDS if name not in HOW),
        "range": ranges.read(request),
        "countries": lists.countries(request),
        "unwritten": [
            (str(days), request.locale.count("%(num)s day", "%(num)s days", days)) for days in lists.UNWRITTEN
        ],
        "may_write": request.may(WRITE),
        "may_export": request.may(WRITE, EXPORT),
        "all_that_fit": request.to("/contacts/all", **kept),
        "writes_to": _campaign(request, kept),
        "change": change,
        "here": request.to("/contacts", **kept, **limited, after=request.query.get("after")),
        "older": None if end is None else request.to("/contacts", **kept, **limited, after=end.hex),
        "first": request.to("/contacts", **kept, **limited),
        "is_first": after is None,
        "columns": columns,
        "last": last,
        "panel": None,
        "size": limit,
        "looked_until": None if found.seen is None else time_of(found.seen),
    }
    if (opened := pagination.opened(request)) is not None:
        values |= {"panel": opened, "person_beside": await _values(request, opened, is_beside=True)}
    return Page(template="audience/people.html", values=values)


async def show(request: Request) -> Answer:
    """One person: what is known, whether they may be written to, and their history."""
    template = "audience/person_live.html" if request.is_fragment else "audience/person.html"
    return Page(template=template, values=await _values(request, request.id(), is_beside=request.is_fragment))


async def annotate(request: Request) -> Answer:
    """Change the notes on them."""
    id, written = request.id(), request.form.get("notes", "")
    try:
        async with request.writing() as conn:
            await notes.write(conn, request.actor, id=id, notes=written)
    except Invalid as refusal:
        said = Invalid(
            *((one["field"], one["issue"], words.CONTACT_FORM["notes"]) for one in refusal.details["fields"])
        )
        return refused("audience/person.html", said, await _values(request, id) | {"notes": written})
    return Redirect(location=request.to(f"/contacts/{id}"), notice=request.text("Saved."))


async def _values(request: Request, id: UUID, *, is_beside: bool = False) -> dict[str, Any]:
    """`is_beside`: shown next to the list."""
    parts = Parts(request)
    async with request.reading() as conn:
        contact = await records.get(conn, request.actor, id=id)
        written = await notes.get(conn, request.actor, id=contact.id)
        opt_out = await optouts.find(conn, request.actor, phone=contact.phone) if contact.opted_out else None
        statements = history.of_person(conn, request.actor, address=contact.phone, limit=STATEMENTS)
        said: Sequence[history.Entry] = await parts.load("said", statements, otherwise=[])
        talks: Sequence[Thread] = await parts.load("talks", _conversations(conn, request, contact), otherwise=[])
        wanted = messages.Filters(recipient=contact.phone)
        listed = messages.list_page(conn, request.actor, filters=wanted, limit=CAMPAIGNS, look=LOOK)
        found = await parts.load("latest", listed, otherwise=MessagePage([], None))
        sent = list(dict.fromkeys(one.campaign_id for one in found.messages if one.campaign_id is not None))
        campaigns: Mapping[UUID, str] = {}
        if sent and request.may("campaigns:read"):
            named = record.names(conn, request.actor, ids=sent)
            campaigns = await parts.load("campaigns", named, otherwise=campaigns)
    return {
        "parts": parts,
        "contact": contact,
        "is_beside": is_beside,
        "notes": written,
        "longest": notes.LONGEST,
        "conversations": talks,
        "campaigns": campaigns,
        "most_campaigns": CAMPAIGNS,
        "opt_out": opt_out,
        "said": said,
        "authors": shared.AUTHORS,
        "may_lift": opt_out is not None and opt_out.source == optouts.ORGANIZATION and _may_opt(request),
        "may_opt": _may_opt(request),
        "whole": lists.sees_numbers(request),
        "whole_messages": request.may(permission=CONTENT),
        "latest": found.messages[:LATEST],
        "looked_until": None if found.seen is None else time_of(found.seen),
        "may_write": request.may(WRITE),
    }


async def _conversations(conn: Connection, request: Request, contact: Contact) -> Sequence[Thread]:
    """Those under any of their identifiers, latest first."""
    if not request.may("whatsapp:read"):
        return []
    names = {*await names_of(conn, request.actor.organization_id, contact.phone)}
    peers = names | set(phones.spellings(contact.phone))
    return await threads.of_peers(conn, request.actor, peers=peers, limit=LATEST)


async def show_new(request: Request) -> Answer:
    """An empty form, or one filled in from the address."""
    typed = {name: request.query.get(name, "")[:200] for name in person_form.FIELDS}
    return Page(template=person_form.TEMPLATE, values=person_form.values(typed, None))


async def create(request: Request) -> Answer:
    """Create a person. Their number is parsed as written in the organization's country."""
    typed = {name: request.form.get(name, "").strip() for name in person_form.FIELDS}

    async def work(conn: Connection) -> str:
        changes = await person_form.read(conn, request, typed)
        assert changes.phone is not None
        assert changes.names is not None
        name, first, last = changes.names
        entry = Entry(changes.phone, name, first, last, changes.tags or ())
        return str((await records.create(conn, request.actor, entry=entry)).id)

    try:
        id = await request.once(work)
    except (Invalid, ContactAlreadyExists) as refusal:
        return person_form.refused_with(refusal, typed, None)
    return Redirect(location=request.to(f"/contacts/{id}"), notice=request.text("The contact is created."))


async def show_edit(request: Request) -> Answer:
    """The form of one person."""
    async with request.reading() as conn:
        contact = await records.get(conn, request.actor, id=request.id())
    return Page(template=person_form.TEMPLATE, values=person_form.values(person_form.shown(contact), contact))


async def change(request: Request) -> Answer:
    """Change a person. Fields left unchanged keep their current values: imports and others add tags meanwhile."""
    id = request.id()
    given = {name: text.strip() for name, text in request.form.items()}
    async with request.reading() as conn:
        contact = await records.get(conn, request.actor, id=id)
    typed = leaving.typed(given, person_form.FIELDS, person_form.shown(contact))

    async def work(conn: Connection) -> str:
        changes = await person_form.read(conn, request, typed)
        return str((await records.change(conn, request.actor, id=id, changes=changes)).id)

    try:
        await request.once(work)
    except (Invalid, ContactAlreadyExists) as refusal:
        return person_form.refused_with(refusal, typed, contact)
    return Redirect(location=request.to(f"/contacts/{id}"), notice=request.text("Saved."))


async def change_marked(request: Request) -> Answer:
    """Tag, untag or delete the selected people; the list shown afterwards offers to undo it."""
    back = _back(request)
    do = request.form.get("do", "")
    ids = _marked(request)

    async def work(conn: Connection) -> tuple[str, int]:
        actor = request.actor
        if do == "delete":
            made = await marked.delete(conn, actor, ids=ids)
        elif do in ("tag", "untag"):
            tag = _tag(request.form.get("tag", ""))
            made = await (marked.add_tag if do == "tag" else marked.remove_tag)(conn, actor, ids=ids, tag=tag)
        else:
            raise Invalid(("do", "enum", "Choose what to do with them."))
        return str(made.id), made.count

    try:
        id, count = await request.once(work)
    except Invalid as refusal:
        said = _said(refusal)
        return Redirect(location=back, notice=request.text(said), is_refusal=True)
    if not count:
        return Redirect(location=back, notice=request.text("Nothing had to be changed."))
    return Redirect(location=f"{back}{'&' if '?' in back else '?'}change={id}")


async def undo(request: Request) -> Answer:
    """Undo what was just done to selected people."""
    id = uuid_in(request.form.get("change", ""))
    back = _back(request)
    if id is None:
        raise NotFound

    async def work(conn: Connection) -> int:
        return (await marked.undo(conn, request.actor, id=id)).count

    try:
        count = await request.once(work)
    except NotFound:
        return Redirect(location=back, notice=request.text("This can no longer be undone."), is_refusal=True)
    said = request.locale.count(
        "Undone: %(num)s contact is as before.", "Undone: %(num)s contacts are as before.", count
    )
    return Redirect(location=back, notice=said)


async def export(request: Request) -> Answer:
    """Export everybody who matches, or the selected people."""
    kept = lists.kept(request.form, FIELDS)
    form: Literal["csv", "jsonl"] = "jsonl" if lists.as_json(request) else "csv"
    ids = tuple(_marked(request)[: marked.MOST])
    async with request.reading() as conn:
        filters, problems = await lists.filters_of(conn, request, kept)
    if problems and not ids:
        return _back_to_filters(request, kept, problems)
    wanted = Contacts(form=form, delimiter=exporting.separator(request), filters=filters, ids=ids)
    return await exporting.ask(request, request.actor, wanted)


async def show_all(request: Request) -> Answer:
    """Before everybody who matches the filters is tagged: how many there are, as far as one query reaches."""
    kept = lists.kept(request.query, FIELDS)
    async with request.reading() as conn:
        _, problems = await lists.filters_of(conn, request, kept)
    if problems:
        return _back_to_filters(request, kept, problems)
    return Page(template="audience/people_all.html", values=await _fitting(request, ""))


async def change_all(request: Request) -> Answer:
    """Have everybody who matches the filters tagged or untagged, and show the progress."""
    typed, kept = request.form.get("tag", ""), lists.kept(request.query, FIELDS)
    async with request.reading() as conn:
        filters, problems = await lists.filters_of(conn, request, kept)
    if problems:
        return _back_to_filters(request, kept, problems)
    try:
        value = _tag(typed)
    except Invalid as refusal:
        wrong = Invalid(("tag", refusal.details["fields"][0]["issue"], _said(refusal)))
        return refused("audience/people_all.html", wrong, await _fitting(request, typed))
    is_removed = request.form.get("do") == "untag"
    delimiter = exporting.separator(request)
    return await exporting.ask(
        request,
        request.actor,
        Tag(form="csv", delimiter=delimiter, filters=filters, value=value, is_removed=is_removed),
    )


async def _fitting(request: Request, typed: str) -> dict[str, Any]:
    kept = lists.kept(request.query, FIELDS)
    async with request.reading() as conn:
        filters, _ = await lists.filters_of(conn, request, kept)
        found = await search.search(conn, request.actor, filters=filters, limit=LOOKED)
    return {
        "typed": typed,
        "count": min(len(found.contacts), LOOKED),
        "is_more": len(found.contacts) > LOOKED,
        "looked_until": None if found.seen is None else time_of(found.seen),
        "action": request.to("/contacts/all", **kept),
        "back": request.to("/contacts", **kept),
    }


def _tag(text: str) -> str:
    """The tag in a form that takes one, written like a list of them: several would be one tag with a comma. Raises
    Invalid."""
    listed = csv_files.split(text)
    if len(listed) > 1:
        raise Invalid(("tag", "several", words.CONTACT_FORM["tag.several"]))
    return records.tag(listed[0] if listed else text, "tag")


def _said(refusal: Invalid) -> str:
    """A refusal of what was to be done to several people, in the form's words."""
    one = refusal.details["fields"][0]
    known = words.CONTACT_FORM
    return known.get(f"{one['field']}.{one['issue']}", known.get(one["field"], one["message"]))


def _marked(request: Request) -> list[UUID]:
    return [id for id in map(uuid_in, request.form.get("ids", "").split(",")) if id is not None]


def _campaign(request: Request, kept: dict[str, str]) -> str:
    """Where a campaign to everybody who matches begins; "" for readers who cannot create one, or without filters."""
    asked = {name: value for name, value in kept.items() if value}
    if not request.may("campaigns:write") or not request.may(WRITE) or not asked.keys() - {*HOW}:
        return ""
    return request.to("/campaigns/new", people="1", **asked)


async def audience_of(request: Request) -> dict[str, str] | Redirect:
    """The fields of a campaign's form, filled in from the address's filters: tags alone as tags, so that anybody tagged
    before the start is included; otherwise the numbers of everybody who matches now. Back to the list if there are too
    many to list, or a filter is not understood: it would be an audience that nobody chose."""
    kept = lists.kept(request.query, FIELDS)
    async with request.reading() as conn:
        filters, problems = await lists.filters_of(conn, request, kept)
    if problems:
        return _back_to_filters(request, kept, problems)
    if kept["tag"] and not any(kept[name] for name in FIELDS if name not in ("tag", *HOW)):
        return {"to": "tags", "tags": kept["tag"], "match": kept["match"]}
    found: list[str] = []
    async for page in search.pages(request.reading_in_turn, request.actor, filters=filters, size=LOOKED):
        found += [one.phone for one in page]
        if len(found) > MAX_RECIPIENTS:
            said = request.text("More than 10,000 people match these filters. Give them a tag, and write to that.")
            return Redirect(location=request.to("/contacts", **kept), notice=said, is_refusal=True)
    # Looked at again when it is sent: others may be writing to them, or it is for another day.
    days = MOST_DAYS if filters.never_written else filters.unwritten_days
    return {"to": "numbers", "numbers": "\n".join(found)} | ({} if days is None else {"unwritten": str(days)})


def _back_to_filters(request: Request, kept: dict[str, str], problems: Mapping[str, str]) -> Redirect:
    """Go to the list with the problem if a filter is not understood: without it, everybody would match."""
    return Redirect(location=request.to("/contacts", **kept), notice=next(iter(problems.values())), is_refusal=True)


def _may_opt(request: Request) -> bool:
    """Opt-outs apply to both modes, so they require the live permission."""
    return request.may(WRITE, mode="live")


def _back(request: Request) -> str:
    """The list that the form was on; the unfiltered list if the form's address is not one of ours."""
    given = request.form.get("back", "")
    is_ours = given.startswith("/contacts?") and given.isprintable() and len(given) < 2_000
    return given if is_ours else request.to("/contacts")
