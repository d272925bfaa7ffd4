"""Sending an SMS: the form, its preview, and the progress of the message once sent."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts.requests import IdempotencyConflict
from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid_in
from heliograph.campaigns import template as campaign_texts
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.contacts import suggesting
from heliograph.contacts.suggesting import Suggestion
from heliograph.dashboard import visibility
from heliograph.dashboard.sending import code, linked, refusals, reply, sms_form, template
from heliograph.dashboard.sending.code import Snippet
from heliograph.dashboard.sending.sms_form import Recipient, Typed
from heliograph.guard.book import ChallengeRequired
from heliograph.overview import messages
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.people import memberships
from heliograph.sms.accepting import preview, sender_choice, sender_ids
from heliograph.sms.accepting.accept import MAX_TEXT
from heliograph.sms.accepting.preview import Measured, Preview
from heliograph.sms.by_hand import own_numbers, saved_texts
from heliograph.sms.by_hand.saved_texts import SavedText
from heliograph.sms.dispatch import routing

TEMPLATE = "sending/sms.html"
#: The (scope, permission) required to request a sender ID, and how many people who may do so are named.
ASK, NAMED = ("sender_ids:write", None), 5


class Bubble(msgspec.Struct, frozen=True):
    """A segment, with its non-GSM characters separated out."""

    number: int
    left: int
    #: (text, whether it makes the message Unicode).
    runs: list[tuple[str, bool]]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The preview of the form as it is."""

    recipient: Recipient | None = None
    number: str = ""
    country: str = ""
    people: list[Suggestion] = []
    measured: Measured | None = None
    bubbles: list[Bubble] = []
    found: Preview | None = None
    #: What is wrong with it, in the reader's language, and the link to the remedy.
    problems: list[str] = []
    way: tuple[str, str] | None = None
    #: The sender has to confirm that a person asked for it.
    challenge: bool = False
    #: "networks", "simulator", "nobody", "nowhere"; empty in test mode.
    route: str = ""
    snippets: list[Snippet] = []
    #: Placeholders that only a campaign fills in.
    places: list[str] = []


class Sent(msgspec.Struct, frozen=True):
    """The part of the response to an accepted send that is needed here."""

    class Message(msgspec.Struct, frozen=True):
        """The message."""

        id: UUID

    message: Message


async def show(request: Request) -> Answer:
    """The form: empty, for a number (`to`), copied from a message (`again`), or next to one just sent (`sent`)."""
    if request.query.get("channel") == "template":
        return await template.show(request)
    if request.query.get("channel") == "reply":
        return await reply.show(request)
    sent = await linked.message(request, request.query.get("sent"))
    if sent is not None and request.is_fragment:
        return Page(template="sending/sent_live.html", values={"sent": sent.message})
    given = await _prefilled(request, sent)
    if given is None:  # a WhatsApp message is sent again by WhatsApp
        return Redirect(location=request.to("/send", channel="template", again=request.query.get("again")))
    values = await _page(request, given, sees=sent is None)
    return Page(template=TEMPLATE, values=values | {"sent": None if sent is None else sent.message})


async def show_preview(request: Request) -> Answer:
    """The preview: alone for a script, otherwise on the whole page. Nothing is stored."""
    given = sms_form.typed(request)
    if "choose" in request.form and (saved := await _saved(request, request.form.get("other_text", ""))) is not None:
        given = msgspec.structs.replace(given, message=saved.body, saved=str(saved.id))
    values = await _page(request, given)
    seen: Seen = values["seen"]
    if request.form.get("replace") and seen.measured is not None and seen.measured.plain is not None:
        given = msgspec.structs.replace(given, message=seen.measured.plain)
        values = await _page(request, given)
    if request.is_fragment:
        return Page(template="sending/sms_preview.html", values=values)
    return Page(template=TEMPLATE, values=values | {"sent": None})


async def send(request: Request) -> Answer:
    """Send it, once per form."""
    given = sms_form.typed(request)
    try:
        async with request.reading() as conn:
            wanted = await sms_form.read(request, conn, given)
        answer = await request.services.sms.accept(wanted)
    except (Invalid, IdempotencyConflict) as refusal:
        return await _refused(request, given, refusal)
    except Refusal as refusal:
        if not refusals.is_told(refusal):
            raise
        return await _refused(request, given, refusal)
    id = msgspec.json.decode(answer.body, type=Sent).message.id
    if (saved := uuid_in(given.saved)) is not None:
        async with request.writing() as conn:
            await saved_texts.used(conn, request.actor, id=saved)
    # After a trial on one's own number, the form keeps the intended recipient.
    meant = request.form.get("to") if "own" in request.form else None
    return Redirect(location=request.to("/send", sent=id, to=meant))


async def back(request: Request) -> Answer:
    """A GET for the address of the preview: go to the form."""
    return Redirect(location=request.to("/send", channel=request.query.get("channel")))


async def _refused(request: Request, given: Typed, refusal: Refusal) -> Page:
    values = await _page(request, given)
    optout = None
    if isinstance(refusal, RecipientOptedOut):
        async with request.reading() as conn:
            whom = await sms_form.recipient(request, conn, given.to)
            optout = await refusals.find_opt_out(conn, request, refusal, whom.number)
    told = refusals.form_refusal(request, refusal, optout)
    return Page(template=TEMPLATE, values=values | {"sent": None}, status=422, refusal=told)


async def _prefilled(request: Request, sent: messages.MessageDetail | None) -> Typed | None:
    """The form's initial values; None: the message belongs to another channel."""
    detail = sent or await linked.message(request, request.query.get("again"))
    to = request.query.get("to", "")[: sms_form.LONGEST_NAME]
    if detail is None:
        if (saved := await _saved(request, request.query.get("saved", ""))) is not None:
            return Typed(to=to, message=saved.body, saved=str(saved.id))
        return Typed(to=to, message=request.query.get("text", ""))
    if detail.message.channel != "sms":
        return None if sent is None else Typed()
    async with request.reading() as conn:
        sender = await sender_choice.named(conn, request.actor, names=[detail.message.sender or ""])
    whole = visibility.is_whole(request, detail.message.person_id)
    return Typed(
        to=to or (detail.message.recipient if whole else ""),
        message=(detail.text or "") if whole else "",
        sender=str(sender.id) if sender and not sender.is_default else "",
        reference=detail.message.client_reference or "",
        guarantee=detail.message.guarantee if detail.message.guarantee != request.actor.guarantee else "",
        traffic_class=detail.message.traffic_class,
    )


async def _saved(request: Request, chosen: str) -> SavedText | None:
    """The saved text with this id; None: none is chosen, or it no longer exists."""
    if (id := uuid_in(chosen)) is None:
        return None
    try:
        async with request.reading() as conn:
            return await saved_texts.get(conn, request.actor, id=id)
    except NotFound:
        return None


async def _page(request: Request, given: Typed, *, sees: bool = True) -> dict[str, Any]:
    async with request.reading() as conn:
        senders = await sender_ids.list_all(conn, request.actor)
        approved = sorted((one for one in senders if one.status == "approved"), key=lambda one: not one.is_default)
        askers = [] if approved else await _askers(conn, request)
        if approved and not approved[0].is_default and not given.sender:
            # The default was suspended: use the sender ID that the form shows as chosen.
            given = msgspec.structs.replace(given, sender=str(approved[0].id))
        texts = await saved_texts.list_all(conn, request.actor)
        own = await own_numbers.get(conn, user_id=request.person.user_id)
        seen = await _see(request, conn, given) if sees else Seen()
    # After each send the form is filled in again; the default class is not mentioned then.
    is_copy = "again" in request.query
    return {
        "channel": "sms",
        "given": given,
        "senders": approved,
        "sender_options": [(str(one.id), one.value) for one in approved],
        "askers": askers,
        "others": [one for one in senders if one.status != "approved"][-5:],
        "validities": sms_form.VALIDITIES,
        "outcomes": sms_form.OUTCOMES,
        "class_name": words.GUARD_CLASSES.get(given.traffic_class)
        if is_copy or given.traffic_class != "transactional"
        else None,
        "has_more": any((given.day, given.hour, given.validity, given.guarantee, given.reference)),
        "longest": MAX_TEXT,
        "texts": texts,
        "own": own.phone,
        "may_save": request.may("sms:send", mode="live"),
        "seen": seen,
    }


async def _askers(conn: Connection, request: Request) -> list[str]:
    """Whom to ask for a sender ID, for readers who may not request one."""
    if request.may(*ASK, mode="live"):
        return []
    roles = request.realm.holders(*ASK, "live")
    return await memberships.holders(conn, request.actor.organization_id, roles, limit=NAMED)


async def _see(request: Request, conn: Connection, given: Typed) -> Seen:
    actor = request.actor
    recipient = await sms_form.recipient(request, conn, given.to) if given.to.strip() else None
    people = []
    if recipient is not None and recipient.number is None and not recipient.choices and request.may("contacts:read"):
        people = await suggesting.suggest(conn, actor, text=given.to)
    measured = preview.measure(actor, given.message) if 0 < len(given.message) <= MAX_TEXT else None
    found: Preview | None = None
    problems: list[str] = []
    way = None
    challenge = given.challenged == "yes"
    snippets: list[Snippet] = []
    number = recipient.number if recipient is not None and recipient.number else ""
    try:
        wanted = await sms_form.read(request, conn, given)
        number = wanted.to
        found = await preview.preview(conn, request.services.sms, wanted)
        snippets = code.of_sms(request, wanted, sender=found.sender.value if given.sender else None)
    except Refusal as refusal:
        problems = refusals.problems(request, refusal, await refusals.find_opt_out(conn, request, refusal, number))
        way = refusals.remedy_link(request, refusal)
        challenge = challenge or isinstance(refusal, ChallengeRequired)
    return Seen(
        recipient=recipient,
        number=phones.spaced(number) if number else "",
        country=request.locale.country(phones.country(number)) if number else "",
        people=people,
        measured=measured,
        bubbles=[] if measured is None else _bubbles(measured),
        found=found,
        problems=problems,
        way=way,
        challenge=challenge,
        route=await routing.carried_by(conn, number or None) if request.mode == "live" else "",
        snippets=snippets,
        places=sorted(campaign_texts.places(given.message)),
    )


def _bubbles(measured: Measured) -> list[Bubble]:
    strange = set(measured.strange)
    made = []
    for part in measured.parts:
        runs: list[tuple[str, bool]] = []
        for one in part.text:
            is_strange = one in strange
            if runs and runs[-1][1] == is_strange:
                runs[-1] = (runs[-1][0] + one, is_strange)
            else:
                runs.append((one, is_strange))
        made.append(Bubble(part.number, part.holds - part.units, runs))
    return made
