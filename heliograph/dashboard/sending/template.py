"""Sending a WhatsApp template: the choice, its parameters as fields, and a preview of the result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts import idempotency
from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.dashboard import choosing, visibility
from heliograph.dashboard.sending import code, linked, refusals, sms_form, whatsapp_form
from heliograph.dashboard.sending.code import Snippet
from heliograph.dashboard.sending.sms_form import Recipient
from heliograph.overview import messages
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.pages.words import SEND_FORM
from heliograph.sms.accepting.accept import MAX_REFERENCE
from heliograph.suppliers.whatsapp_cloud.bodies import is_user_id
from heliograph.whatsapp import library, number_states, rendering
from heliograph.whatsapp.accepting import preview
from heliograph.whatsapp.accepting.accept import Send, TemplateSend
from heliograph.whatsapp.accepting.preview import Preview
from heliograph.whatsapp.library import Entry

PAGE = "sending/template.html"
#: Maximum characters of a value.
LONGEST = 1_024
_VARIABLE = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Typed(msgspec.Struct, frozen=True):
    """The fields of the form as typed."""

    to: str = ""
    #: Ids of a number and of a template.
    number: str = ""
    template: str = ""
    reference: str = ""
    values: tuple[str, ...] = ()
    #: In test mode: one of `sms_form.OUTCOMES`.
    outcome: str = ""


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The preview of the form as it is."""

    recipient: Recipient | None = None
    number: str = ""
    country: str = ""
    found: Preview | None = None
    problems: list[str] = []
    way: tuple[str, str] | None = None
    snippets: list[Snippet] = []


async def show(request: Request) -> Answer:
    """The form, and next to it a message just sent."""
    found = await linked.message(request, request.query.get("sent"))
    sent = None if found is None else found.message
    if sent is not None and request.is_fragment:
        return Page(template="sending/sent_live.html", values={"sent": sent})
    given = await _prefilled(request)
    if given is None:  # it was free text, so send free text again
        return Redirect(location=request.to("/send", channel="reply", again=request.query["again"]))
    values = await _values(request, given, sees=bool(given.to))
    return Page(template=PAGE, values=values | {"sent": sent})


async def show_preview(request: Request) -> Answer:
    """The preview: alone for a script, otherwise on the whole page."""
    values = await _values(request, _typed(request))
    template = "sending/template_preview.html" if request.is_fragment else PAGE
    return Page(template=template, values=values | {"sent": None})


async def send(request: Request) -> Answer:
    """Send it, once per form."""
    given = _typed(request)
    sent = await whatsapp_form.accept(request, lambda conn: _read(request, conn, given))
    if isinstance(sent, Refusal):
        values = await _values(request, given)
        return Page(
            template=PAGE, values=values | {"sent": None}, status=422, refusal=refusals.form_refusal(request, sent)
        )
    where = request.to("/send", channel="template", number=given.number, template=given.template, sent=sent)
    return Redirect(location=where)


async def back(request: Request) -> Answer:
    """A GET for the address that the form posts to: go to the form."""
    return Redirect(location=request.to("/send", channel="template"))


def filled(entry: Entry, values: tuple[str, ...]) -> list[tuple[str, str]]:
    """What a phone shows: (header, body, footer or button; text). Missing values keep their braces."""
    kinds = library.slots(entry.layout)
    known = {slot: value for slot, value in zip(kinds, values, strict=False) if value}
    if entry.layout.authentication and values and values[0]:
        known |= {("body", name): values[0] for name in entry.layout.body_variables}
    shown: list[tuple[str, str]] = []
    for part in entry.template.parts:
        if part.type == "buttons":
            shown += [("button", one.text or "") for one in part.buttons]
        elif part.text:
            shown.append((part.type, _VARIABLE.sub(partial(_put, known, part.type), part.text)))
        elif part.type == "header":
            shown.append(("header", f"[{part.format}]"))
    if entry.layout.authentication and not any(kind == "body" for kind, _ in shown):
        shown.insert(0, ("body", rendering.filled(entry.layout, values)))
    return shown


def _put(known: Mapping[tuple[str, str], str], kind: str, variable: re.Match[str]) -> str:
    """A variable's value, if there is one. A value's own braces are text."""
    return known.get((kind, variable[1]), variable[0])


def _typed(request: Request) -> Typed:
    form = request.form
    values: list[str] = []
    while (name := f"p{len(values) + 1}") in form and len(values) < 50:
        values.append(form[name])
    to = form.get("take") or form.get("to", "")
    return Typed(
        to,
        form.get("number", ""),
        form.get("template", ""),
        form.get("reference", ""),
        tuple(values),
        form.get("outcome", ""),
    )


async def _prefilled(request: Request) -> Typed | None:
    """The form's initial values; None: the message to send again was not a template."""
    query = request.query
    given = Typed(query.get("to", "")[: sms_form.LONGEST_NAME], query.get("number", ""), query.get("template", ""))
    if (id := linked.id_in(request.query.get("again"))) is None:
        return given
    async with request.reading() as conn:
        earlier = await whatsapp_form.again(conn, request, id=id)
        whole = visibility.is_whole(request, (await messages.get(conn, request.actor, id=id)).message.person_id)
    said = earlier.content
    if not isinstance(said, TemplateSend):
        return None
    return Typed(
        earlier.to if whole else "",
        str(earlier.number_id),
        f"{said.name} ({said.language})",
        earlier.client_reference or "",
        said.parameters if whole else (),
    )


async def _read(request: Request, conn: Connection, given: Typed) -> Send:
    wrong: list[tuple[str, str]] = []
    number, fault = await sms_form.addressee(request, conn, given.to, given.outcome, meant=whatsapp_form.recipient)
    if fault:
        wrong.append(("to", fault))
    entry = await _entry(request, conn, given.template)
    if entry is None:
        wrong.append(("template", "unknown"))
    if len(given.reference) > MAX_REFERENCE:
        wrong.append(("reference", "length"))
    wrong += [(f"p{n}", "required") for n, value in enumerate(given.values, 1) if not value.strip()]
    try:
        line = UUID(given.number)
    except ValueError:
        wrong.append(("number", "unknown"))
    if wrong or number is None or entry is None:
        raise Invalid(*((field, issue, SEND_FORM[f"{_kind(field)}.{issue}"]) for field, issue in wrong))
    once = request.form.get("_once", "")
    if not once or len(once) > idempotency.MAX_LENGTH:
        raise Invalid(("form", "required", SEND_FORM["form.required"]))
    template = entry.template
    return Send(
        actor=request.actor,
        to=number,
        number_id=line,
        content=TemplateSend(template.name, template.language, template.category, given.values),
        client_reference=given.reference or None,
        request_id=request.request_id,
        trace=request.trace,
        key_hash=idempotency.key_hash(request.mode, "PAGE", "/send/template", f"{request.person.user_id} {once}"),
        request_hash=idempotency.request_hash([str(request.person.user_id), msgspec.to_builtins(given), number]),
    )


def _kind(field: str) -> str:
    return "p" if field.startswith("p") and field[1:].isdigit() else field


async def _values(request: Request, given: Typed, *, sees: bool = True) -> dict[str, Any]:
    async with request.reading() as conn:
        numbers = await number_states.list_all(conn, request.actor)
        given = msgspec.structs.replace(given, template=await choosing.meant(conn, request, given.template))
        if not given.number and numbers:
            given = msgspec.structs.replace(given, number=str(numbers[0].number.id))
        entry = await _entry(request, conn, given.template)
        listed = await choosing.offered(conn, request, chosen=None if entry is None else entry.template)
        slots = [] if entry is None else library.slots(entry.layout)
        values = (*given.values, *([""] * len(slots)))[: len(slots)]
        given = msgspec.structs.replace(given, values=values)
        seen = await _see(request, conn, given) if sees and entry is not None else Seen()
    chosen = next((one for one in numbers if str(one.number.id) == given.number), None)
    return {
        "channel": "template",
        "given": given,
        "numbers": numbers,
        "chosen": chosen,
        "listed": listed,
        "entry": entry,
        "slots": slots,
        "longest": LONGEST,
        "outcomes": sms_form.OUTCOMES,
        "shown": [] if entry is None else filled(entry, values),
        "seen": seen,
        "route": "simulator" if chosen is not None and chosen.is_simulated and request.mode == "live" else "",
    }


async def _see(request: Request, conn: Connection, given: Typed) -> Seen:
    recipient = None
    if given.to.strip() and not is_user_id(given.to.strip()):
        recipient = await sms_form.recipient(request, conn, given.to)
    number = recipient.number if recipient is not None and recipient.number else ""
    number = sms_form.ending(request, number, given.outcome)
    found, snippets, problems, way = None, list[Snippet](), list[str](), None
    try:
        request.form.setdefault("_once", "preview")
        wanted = await _read(request, conn, given)
        snippets = code.of_whatsapp(request, wanted)
        margin = request.services.settings.whatsapp_window_margin_seconds
        found = await preview.preview(conn, request.services.whatsapp, wanted, margin=margin)
    except Refusal as refusal:
        problems = refusals.problems(request, refusal)
        way = refusals.remedy_link(request, refusal)
    return Seen(
        recipient=recipient,
        number=phones.spaced(number) if number else "",
        country=request.locale.country(phones.country(number)) if number else "",
        found=found,
        problems=problems,
        way=way,
        snippets=snippets,
    )


async def _entry(request: Request, conn: Connection, wanted: str) -> Entry | None:
    if not wanted:
        return None
    try:
        return await library.get(conn, request.actor, id=UUID(wanted))
    except (ValueError, NotFound):
        return None
