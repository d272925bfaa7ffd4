"""D7b New campaign: audience, content and time; recipients, segments and cost are shown next to the form."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts import idempotency
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Refusal
from heliograph.base.ids import uuid7_text, uuid_in
from heliograph.campaigns import drafts, filling, template
from heliograph.campaigns.channels import sms, whatsapp
from heliograph.campaigns.views import preview, recipients
from heliograph.campaigns.views.preview import Preview
from heliograph.dashboard.audience import people, words
from heliograph.dashboard.audience.composing import drafts as campaign_drafts
from heliograph.dashboard.audience.composing import form, meaning, offers
from heliograph.dashboard.audience.composing.meaning import Given
from heliograph.dashboard.sending import refusals
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.forms import figures
from heliograph.pages.requests import Request
from heliograph.pages.words import SEND_FORM
from heliograph.sms.accepting.accept import Send
from heliograph.whatsapp.accepting import accept as whatsapp_send

HERE = "/campaigns"
PAGE = "audience/campaign_new.html"
#: From this number of recipients on, it has to be typed to confirm.
MANY = 1_000
#: Fields of a send, and their names in a campaign's form; errors in all others are shown above it.
_FIELDS = {"message": "text", "sender": "sender", "number": "number", "template": "template"}


async def show(request: Request) -> Answer:
    """The form, prefilled from the address."""
    listed = await people.audience_of(request) if request.query.get("people") else {}
    if isinstance(listed, Redirect):
        return listed
    typed = await form.prefilled(request) | listed
    if (draft := uuid_in(typed["draft"])) is not None:
        typed |= await campaign_drafts.read(request, draft)
    else:
        typed["draft"] = uuid7_text()
    return Page(template=PAGE, values=await _values(request, typed))


async def create(request: Request) -> Answer:
    """Preview it, send it to oneself, or create it."""
    typed = form.typed(request.form)
    wants = request.form.get("do", "preview")
    saved = ""
    if wants != "create":  # nothing typed is lost, even without a script
        saved = await campaign_drafts.keep(request, typed)
    if wants == "template":  # another template has other fields
        return Page(template=PAGE, values=await _values(request, typed, saved=saved))
    if wants != "create":
        typed["start"] = str(meaning.start(typed) + preview.EXAMPLES) if wants == "shuffle" else "0"
    try:
        async with request.reading() as conn:
            given = await meaning.read(request, conn, typed)
            seen = await meaning.preview_campaign(request, conn, typed, given)
    except Invalid as refusal:
        if wants == "create" and (id := await _created_before(request, refusal)) is not None:
            return _shown(request, id)
        return refused(PAGE, form.form_refusal(refusal), await _values(request, typed, saved=saved))
    if wants == "create":
        return await _create(request, typed, given, seen)
    values = await _values(request, typed, seen, given, saved=saved)
    if wants == "trial":
        return await _try(request, given, seen, values)
    return Page(template=PAGE, values=values)


async def _create(request: Request, typed: dict[str, str], given: Given, seen: Preview) -> Answer:
    # The buttons are those of what was checked: one that schedules it would send it at once, or to others.
    if request.form.get("checked", given.digest) != given.digest:
        wrong = Invalid(("check", "differs", words.CAMPAIGN_FORM["check.differs"]))
        return refused(PAGE, wrong, await _values(request, typed, seen, given))
    if seen.would > MANY:
        wrong = Invalid(("typed", "differs", "Type how many people get it."))
        try:
            if figures.whole(typed["typed"], wrong) != seen.would:
                raise wrong
        except Invalid:
            return refused(PAGE, wrong, await _values(request, typed, seen, given))
    try:
        id = await request.once(lambda conn: _make(request, conn, given, uuid_in(typed["draft"])))
    except Refusal as refusal:
        return refused(PAGE, form.form_refusal(refusal), await _values(request, typed, seen, given))
    return _shown(request, id)


def _shown(request: Request, id: str) -> Answer:
    return Redirect(location=request.to(f"{HERE}/{id}"), notice=request.text("The campaign is created."))


async def _created_before(request: Request, refusal: Invalid) -> str | None:
    """The campaign that this same form created, if it was submitted before: it has left nobody to try again."""

    async def refuse(_: Connection) -> str:
        raise refusal

    try:
        id: str = await request.once(refuse)
    except Refusal:
        return None
    return id


async def _make(request: Request, conn: Connection, given: Given, draft: UUID | None) -> str:
    spec = given.spec
    if spec.again_of is not None:
        # Somebody else may have just created one for them.
        earlier = await form.found(request, conn, spec.again_of)
        left = set(await recipients.again(conn, request.actor, campaign=earlier, holds=True))
        spec = msgspec.structs.replace(spec, recipients=[one for one in spec.recipients or () if one in left])
        if not spec.recipients:
            raise Invalid(("to", "empty", words.CAMPAIGN_FORM["to.empty"]))
    if isinstance(spec, whatsapp.WhatsAppCampaignSpec):
        made = await whatsapp.create(conn, request.actor, spec=spec, request_id=request.request_id)
    else:
        made = await sms.create(conn, request.actor, spec=spec, request_id=request.request_id)
    if draft is not None:
        await drafts.end(conn, request.actor, id=draft)
    return str(made.id)


async def _try(request: Request, given: Given, seen: Preview, values: dict[str, Any]) -> Answer:
    """Send it to the person who asks, and show the form as it was."""
    if not values["own"]:  # removed meanwhile, or their role sends nothing
        return Page(template=PAGE, values=values)
    try:
        sent = await _send(request, given, seen, values["own"])
    except Refusal as refusal:
        if not refusals.is_told(refusal):
            raise
        return refused(PAGE, _form_refusal(request, refusal), values)
    return Page(template=PAGE, values=values | {"sent": sent})


class _Sent(msgspec.Struct, frozen=True):
    """The part of the response to an accepted send that is needed here."""

    class Message(msgspec.Struct, frozen=True):
        """The message."""

        id: UUID

    message: Message


async def _send(request: Request, given: Given, seen: Preview, own: str) -> UUID:
    """Send the first example's message to `own`, once per form, with the campaign's sender and class, so that it takes
    the same route. Returns the message's id. Raises what a send raises."""
    once = request.form.get("_once", "")
    if not once or len(once) > idempotency.MAX_LENGTH:
        raise Invalid(("form", "required", SEND_FORM["form.required"]))
    person = str(request.person.user_id)
    key = idempotency.key_hash(request.mode, "PAGE", "/campaigns/trial", f"{person} {once}")
    first = seen.examples[0] if seen.examples else None
    if given.filled is not None:
        one, chosen = given.filled, given.filled.entry.template
        values = first.parameters if first else filling.filler(one.parameters)((own, None, None, None, None))
        answer = await request.services.whatsapp.accept(
            whatsapp_send.Send(
                actor=request.actor,
                to=own,
                number_id=one.number,
                content=whatsapp_send.TemplateSend(chosen.name, chosen.language, chosen.category, values),
                request_id=request.request_id,
                trace=request.trace,
                key_hash=key,
                request_hash=idempotency.request_hash([person, own, str(one.number), str(chosen.id), values]),
            )
        )
    else:
        text = first.text if first else template.filler(given.text)((own, "", "", ""))
        answer = await request.services.sms.accept(
            Send(
                actor=request.actor,
                to=own,
                text=text,
                sender_id=given.sender,
                request_id=request.request_id,
                trace=request.trace,
                key_hash=key,
                request_hash=idempotency.request_hash([person, own, text, str(given.sender or "")]),
                traffic_class=given.traffic_class,
            )
        )
    return msgspec.json.decode(answer.body, type=_Sent).message.id


def _form_refusal(request: Request, refusal: Refusal) -> Invalid:
    """A send's refusal, each part at its field."""
    fields = refusals.form_refusal(request, refusal).details["fields"]
    return Invalid(*((_FIELDS.get(one["field"], "form"), one["issue"], one["message"]) for one in fields))


async def _values(
    request: Request,
    typed: dict[str, str],
    seen: Preview | None = None,
    given: Given | None = None,
    *,
    saved: str = "",
) -> dict[str, Any]:
    """`saved`: what is said about saving it as a draft."""
    duplicates = []
    if given is not None:
        async with request.reading() as conn:
            duplicates = await preview.duplicates(conn, request.actor, spec=given.spec)
    values = await offers.values(request, typed, seen, given)
    checked = None if seen is None or given is None else given.digest
    return values | {"many": MANY, "sent": None, "duplicates": duplicates, "checked": checked, "saved": saved}
