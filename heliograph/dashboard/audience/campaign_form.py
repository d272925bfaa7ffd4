"""The form for a campaign: its fields as they were typed, what they mean, and what is known beside them.

It has over 400 lines because each field is offered, read and told in one place.

The rule nobody may break: what is typed and cannot be understood is told at its field; it is never taken for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from heliograph.accounts import organizations, quota, send_defaults, spending
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid_in
from heliograph.campaigns import audience, filling, plan, record, template
from heliograph.campaigns.channels import sms, whatsapp
from heliograph.campaigns.filling import COLUMNS, LONGEST, MOST, Filling
from heliograph.campaigns.plan import MAX_PACE, CampaignAudienceEmpty
from heliograph.campaigns.record import Campaign
from heliograph.campaigns.views import preview, recipients
from heliograph.campaigns.views.preview import Preview
from heliograph.classes.kinds import CLASSES
from heliograph.contacts import records
from heliograph.contacts.imports import drafts
from heliograph.dashboard.audience import words
from heliograph.pages.forms import figures
from heliograph.pages.requests import Request
from heliograph.sms.accepting import sender_ids
from heliograph.sms.accepting.sender_ids import SenderIdNotApproved
from heliograph.sms.by_hand import own_numbers, saved_texts
from heliograph.whatsapp import library, reads, standing
from heliograph.whatsapp.library import Entry
from heliograph.whatsapp.mirror.numbers import PhoneNumberUnavailable
from heliograph.whatsapp.mirror.templates import (
    TemplateNotApproved,
    TemplateNotFound,
    TemplateNotSendable,
    TemplateParameterMismatch,
)
from heliograph.whatsapp.money import wallet
from heliograph.whatsapp.reads import TemplateFilters

#: Whom it goes to, and when; then what it says, by channel. A template's n-th parameter is `p<n>`, a column or `text`,
#: and `t<n>`: the text, or what stands in where the column is empty.
FIELDS = (
    *("channel", "name", "to", "tags", "match", "without", "numbers", "from", "when", "day", "hour", "pace", "typed"),
    *("start", "draft", "sender", "text", "number", "template", "import", "unwritten"),
)
#: Templates that are offered, and imports.
OFFERED, IMPORTS = 200, 50
#: Pasted numbers that are shown with what they were read as, of each kind.
SAMPLES = 3
#: A refusal, and the field that it is told at.
REFUSED: Mapping[type[Refusal], str] = {
    SenderIdNotApproved: "sender",
    CampaignAudienceEmpty: "to",
    PhoneNumberUnavailable: "number",
    TemplateNotApproved: "template",
    TemplateNotFound: "template",
    TemplateNotSendable: "template",
    TemplateParameterMismatch: "template",
}


class Filled(msgspec.Struct, frozen=True):
    """A template, and where its values come from."""

    number: UUID
    entry: Entry
    parameters: tuple[Filling, ...]


class Given(msgspec.Struct, frozen=True):
    """What the form says, read."""

    name: str
    tags: list[str] | None
    recipients: list[str] | None
    imported: UUID | None
    match: Literal["any", "all"]
    without: list[str]
    #: Contacts who were written to within so many days are skipped.
    unwritten: int | None
    scheduled_at: datetime | None
    pace: int | None
    #: SMS.
    text: str
    sender: UUID | None
    #: None: it is an SMS.
    filled: Filled | None
    #: Numbers that were pasted: text → what it was read as, None: no number.
    pasted: Mapping[str, str | None]

    @property
    def unread(self) -> int:
        """Pasted texts that are no numbers."""
        return sum(number is None for number in self.pasted.values())

    @property
    def national(self) -> list[tuple[str, str]]:
        """Some of the pasted texts that lack a country's code, those that are no numbers (with "") before others."""
        national = [(text, number or "") for text, number in self.pasted.items() if not text.startswith(("+", "00"))]
        none, read = [one for one in national if not one[1]], [one for one in national if one[1]]
        return none[:SAMPLES] + read[:SAMPLES]

    @property
    def wish(self) -> sms.Wish | whatsapp.Wish:
        """The campaign that is wished for."""
        common: dict[str, Any] = {
            "name": self.name,
            "scheduled_at": self.scheduled_at,
            "audience_tags": self.tags,
            "audience_import": self.imported,
            "audience_tag_match_mode": self.match,
            "excluded_tags": self.without,
            "not_written_days": self.unwritten,
            "recipients": self.recipients,
            "messages_per_minute": self.pace,
        }
        if self.filled is None:
            return sms.Wish(message_template=self.text, sender_id=self.sender, **common)
        one = self.filled
        chosen = one.entry.template
        return whatsapp.Wish(
            number_id=one.number, template=chosen.name, language=chosen.language, parameters=one.parameters, **common
        )


async def prefilled(request: Request) -> dict[str, str]:
    """The form as the address fills it in: tags, a saved text, a template, a campaign to copy, or one that did not
    reach everybody."""
    query = request.query
    typed = {name: query.get(name, "")[:2_000] for name in FIELDS}
    typed["to"] = "again" if typed["from"] else "import" if typed["import"] else "tags"
    async with request.reading() as conn:
        if (saved := uuid_in(query.get("saved", ""))) is not None:
            typed["text"] = (await saved_texts.get(conn, request.actor, id=saved)).body
        if (copied := uuid_in(query.get("copy", "") or typed["from"])) is not None:
            typed |= _copied(request, await found(request, conn, copied))
    return typed


def typed(form: Mapping[str, str]) -> dict[str, str]:
    """The form as somebody sent it."""
    kept = {name: form.get(name, "").strip() for name in FIELDS}
    for n in range(1, MOST + 1):
        if f"p{n}" not in form:
            break
        kept |= {f"p{n}": form[f"p{n}"], f"t{n}": form.get(f"t{n}", "").strip()}
    return kept


async def found(request: Request, conn: Connection, id: UUID) -> Campaign:
    """A campaign of either channel. Raises NotFound."""
    try:
        return await record.get(conn, request.actor, id=id)
    except NotFound:
        return await record.get(conn, request.actor, id=id, channel="whatsapp")


def _copied(request: Request, campaign: Campaign) -> dict[str, str]:
    """What the form for such a campaign would have been. Numbers that were listed are forgotten behind a campaign."""
    content = campaign.content
    kept = {
        "channel": campaign.channel,
        "name": campaign.name,
        "pace": str(campaign.messages_per_minute or ""),
        "tags": ", ".join(campaign.audience_tags or ()),
        "match": campaign.audience_tag_match_mode,
        "without": ", ".join(campaign.excluded_tags),
        "unwritten": str(campaign.not_written_days or ""),
    }
    if request.query.get("copy") and campaign.audience_import is not None:
        kept |= {"to": "import", "import": str(campaign.audience_import)}
    elif request.query.get("copy") and campaign.audience_tags is None:
        kept["to"] = "numbers"
    if campaign.channel == "sms":
        return kept | {"text": content["message_template"], "sender": str(content["sender_id"])}
    kept |= {"number": str(content["number_id"]), "template": str(content["template_id"])}
    for n, one in enumerate(filling.read(content["parameters"]), 1):
        kept |= {f"p{n}": one.column or "text", f"t{n}": (one.default if one.column else one.text) or ""}
    return kept


async def read(request: Request, conn: Connection, typed: dict[str, str]) -> Given:
    """Raises Invalid with all that is wrong."""
    wrong: list[tuple[str, str, str]] = []
    try:
        plan.checked_name(typed["name"])
    except Invalid as refusal:
        issue = refusal.details["fields"][0]["issue"] if typed["name"] else "required"
        wrong.append(("name", issue, words.CAMPAIGN_FORM[f"name.{issue}"]))
    sender = uuid_in(typed["sender"])
    said: Filled | None = None
    if typed["channel"] == "whatsapp":
        said = await _template(request, conn, typed, wrong)
    else:
        _text(request, typed, wrong)
        if typed["sender"] and sender is None:
            wrong.append(("sender", "unknown", words.CAMPAIGN_FORM["sender.unknown"]))
    pasted = await _pasted(request, conn, typed, wrong) if typed["to"] == "numbers" else {}
    tags, listed, without = await _audience(request, conn, typed, pasted, wrong)
    imported = uuid_in(typed["import"]) if typed["to"] == "import" else None
    scheduled_at: datetime | None = None
    if typed["when"] == "later":
        try:
            zone = ZoneInfo(request.speech.zone)
            scheduled_at = datetime.combine(date.fromisoformat(typed["day"]), time.fromisoformat(typed["hour"]), zone)
        except ValueError:
            wrong.append(("day", "format", words.CAMPAIGN_FORM["day.format"]))
    pace = _count(typed, "pace", MAX_PACE, wrong)
    unwritten = _count(typed, "unwritten", audience.MOST_DAYS, wrong)
    if wrong:
        raise Invalid(*wrong)
    return Given(
        name=typed["name"],
        tags=tags,
        recipients=listed,
        imported=imported,
        match="all" if typed["match"] == "all" else "any",
        without=without,
        unwritten=unwritten,
        scheduled_at=scheduled_at,
        pace=pace,
        text=typed["text"],
        sender=sender,
        filled=said,
        pasted=pasted,
    )


def _count(typed: Mapping[str, str], field: str, most: int, wrong: list[tuple[str, str, str]]) -> int | None:
    """A number from 1 to `most`; None: the field is empty, or wrong."""
    refused = (field, "range", words.CAMPAIGN_FORM[f"{field}.range"])
    try:
        return figures.within(typed[field], Invalid(refused), least=1, most=most)
    except Invalid:
        wrong.append(refused)
        return None


def _text(request: Request, typed: dict[str, str], wrong: list[tuple[str, str, str]]) -> None:
    try:
        template.check(typed["text"], "text", smart=request.actor.smart_encoding, accents=request.actor.replace_accents)
    except Invalid as refusal:
        issue = refusal.details["fields"][0]["issue"]
        wrong.append(("text", issue, words.CAMPAIGN_FORM.get(f"text.{issue}", words.CAMPAIGN_FORM["text.length"])))


async def _audience(
    request: Request,
    conn: Connection,
    typed: dict[str, str],
    pasted: Mapping[str, str | None],
    wrong: list[tuple[str, str, str]],
) -> tuple[list[str] | None, list[str] | None, list[str]]:
    """(tags, or listed numbers; tags that are left out)"""
    tags: list[str] | None = None
    listed: list[str] | None = None
    if typed["to"] == "again" and typed["from"]:
        if (earlier := uuid_in(typed["from"])) is None:
            raise NotFound
        listed = await recipients.again(conn, request.actor, campaign=await found(request, conn, earlier))
        if not listed:
            wrong.append(("to", "empty", words.CAMPAIGN_FORM["to.empty"]))
    elif typed["to"] == "import":
        if uuid_in(typed["import"]) is None:
            wrong.append(("import", "unknown", words.CAMPAIGN_FORM["import.unknown"]))
    elif typed["to"] == "numbers":
        listed = [number for number in pasted.values() if number is not None]
    else:
        try:
            tags = list(records.tags(_split(typed["tags"]), "tags"))
        except Invalid:
            tags = []
        if not 1 <= len(tags) <= audience.MAX_TAGS:
            wrong.append(("tags", "length", words.CAMPAIGN_FORM["tags.length"]))
    try:
        return tags, listed, audience.excluded(_split(typed["without"]), is_listed=listed is not None)
    except Invalid:
        issue = "exclusive" if listed is not None else "length"
        wrong.append(("without", issue, words.CAMPAIGN_FORM[f"without.{issue}"]))
        return tags, listed, []


async def _pasted(
    request: Request, conn: Connection, typed: dict[str, str], wrong: list[tuple[str, str, str]]
) -> dict[str, str | None]:
    """Pasted numbers, read as people of the organization's country write them: text → number. A national number never
    becomes another country's; the check shows what became of it."""
    listed = numbers(typed["numbers"])
    if not 1 <= len(listed) <= audience.MAX_RECIPIENTS:
        wrong.append(("numbers", "length", words.CAMPAIGN_FORM["numbers.length"]))
        return {}
    home = (await organizations.get(conn, id=request.actor.organization_id)).country
    read = await audience.at_home(listed, home=home)
    if not any(read.values()):
        issue = "pattern" if home else "country"
        wrong.append(("numbers", issue, words.CAMPAIGN_FORM[f"numbers.{issue}"]))
    return read


def numbers(text: str) -> list[str]:
    """Numbers as they are pasted: one a line, or with commas or semicolons between them."""
    return [one for one in text.replace(",", "\n").replace(";", "\n").split("\n") if one.strip()]


def _split(text: str) -> list[str]:
    return [one for one in text.split(",") if one.strip()]


async def _template(
    request: Request, conn: Connection, typed: dict[str, str], wrong: list[tuple[str, str, str]]
) -> Filled | None:
    number, entry = uuid_in(typed["number"]), await _entry(request, conn, typed)
    if number is None:
        wrong.append(("number", "unknown", words.CAMPAIGN_FORM["number.unknown"]))
    if entry is None:
        wrong.append(("template", "unknown", words.CAMPAIGN_FORM["template.unknown"]))
    elif entry.template.category != whatsapp.CATEGORY:
        wrong.append(("template", "category", words.CAMPAIGN_FORM["template.category"]))
    if number is None or entry is None:
        return None
    fillings: list[Filling] = []
    count = entry.layout.parameter_count
    for n in range(1, count + 1):
        source, text = typed.get(f"p{n}", ""), typed.get(f"t{n}", "")
        if source in COLUMNS:
            one = Filling(column=source, default=text or None)
        elif source == "text" and text:
            one = Filling(text=text)
        else:
            issue = "required" if source == "text" else "unknown"
            field = f"{'t' if source == 'text' else 'p'}{n}"
            wrong.append((field, issue, words.CAMPAIGN_FORM[f"parameter.{issue}"]))
            continue
        fillings.append(one)
        # The others as if their columns had a value: so it is known which of them is refused.
        others: list[Filling] = [Filling(column="name")] * count
        others[n - 1] = one
        try:
            filling.check(entry.layout, others)
        except Invalid:
            wrong.append((f"t{n}", "refused", words.CAMPAIGN_FORM["parameter.refused"]))
    return Filled(number, entry, tuple(fillings))


async def _entry(request: Request, conn: Connection, typed: dict[str, str]) -> Entry | None:
    if (id := uuid_in(typed["template"])) is None:
        return None
    try:
        return await library.get(conn, request.actor, id=id)
    except NotFound:
        return None


async def look(request: Request, conn: Connection, typed: dict[str, str], given: Given) -> Preview:
    """What would become of it. Raises Invalid for a number or template that cannot be sent."""
    wish, waits = given.wish, None
    if isinstance(wish, whatsapp.Wish):
        try:
            say = preview.whatsapp(await whatsapp.outlook(conn, request.actor, wish=wish))
        except Refusal as refusal:
            raise told(refusal) from None
    else:
        say = preview.sms(request.actor, given.text)
        if CLASSES[wish.traffic_class].waits_for_day:
            waits = max(clock.now(), wish.scheduled_at or clock.now())
    seen = await preview.look(
        conn,
        request.actor,
        say=say,
        tags=given.tags,
        match=given.match,
        without=given.without,
        recipients=given.recipients,
        imported=given.imported,
        not_written_days=given.unwritten,
        start=int(typed["start"]) if typed["start"].isdecimal() and len(typed["start"]) < 6 else 0,
        waits=waits,
    )
    return msgspec.structs.replace(seen, found=seen.found + given.unread, invalid=seen.invalid + given.unread)


async def values(
    request: Request, typed: dict[str, str], seen: Preview | None = None, given: Given | None = None
) -> dict[str, Any]:
    """What the form's template needs."""
    shown: dict[str, Any] = {"typed": typed, "seen": seen, "zone": request.speech.zone, "longest": LONGEST}
    shown["national"] = [] if given is None else given.national
    pace = None if given is None else given.pace
    shown["lasts"] = 60 * seen.would / pace if seen is not None and pace else None
    async with request.reading() as conn:
        defaults = await send_defaults.get(conn, organization_id=request.actor.organization_id)
        home = (await organizations.get(conn, id=request.actor.organization_id)).country
        own = await own_numbers.get(conn, user_id=request.person.user_id)
        sees = request.may("contacts:write")
        imports = await drafts.list_page(conn, request.actor, after=None, limit=IMPORTS) if sees else []
        if typed["channel"] == "whatsapp":
            shown |= await _whatsapp_values(request, conn, typed)
        else:
            shown |= await _sms_values(request, conn)
    shown["home"] = request.speech.country(home) if home else ""
    shown["imports"] = [
        (str(one.id), f"{one.file} · {request.speech.moment(one.started_at)}") for one in imports if one.is_audience
    ]
    above = defaults.approval_above if request.mode == "live" else None
    shown["above"] = above if seen is not None and above is not None and seen.would > above else None
    scope = "whatsapp:send" if typed["channel"] == "whatsapp" else "sms:send"
    shown["own"] = own.phone if request.may(scope) else None
    shown["may_prove"] = request.may("sms:send", mode="live")
    shown["cost"] = 0 if seen is None or request.mode == "test" else seen.would
    return shown


async def _sms_values(request: Request, conn: Connection) -> dict[str, Any]:
    listed = await sender_ids.list_all(conn, request.actor)
    balance = await quota.get(conn, request.actor.organization_id)
    today = await spending.left(conn, request.actor.organization_id)
    approved = [one for one in listed if one.status == "approved"]
    return {
        "senders": approved,
        "sender_options": [("", request.text("the default")), *((str(one.id), one.value) for one in approved)],
        "left": balance.remaining,
        #: Segments that a limit of the day leaves; None: there is no limit.
        "left_today": today.get("organization") if request.mode == "live" else None,
        "places": template.PLACES,
    }


async def _whatsapp_values(request: Request, conn: Connection, typed: dict[str, str]) -> dict[str, Any]:
    numbers = await standing.list_all(conn, request.actor)
    listed, _ = await reads.templates(conn, request.actor, filters=TemplateFilters(status="approved"), limit=OFFERED)
    entry = await _entry(request, conn, typed)
    offered = sorted(
        (one for one in listed[:OFFERED] if one.sendable and one.category == whatsapp.CATEGORY),
        key=lambda one: (one.name, one.language),
    )
    sources = [(name, request.text(words.CAMPAIGN_COLUMNS[name])) for name in COLUMNS]
    return {
        "numbers": [(str(one.number.id), one.number.display_phone_number) for one in numbers],
        "templates": [
            ("", request.text("Choose one")),
            *((str(one.id), f"{one.name} ({one.language})") for one in offered),
        ],
        "entry": entry,
        "slots": [] if entry is None else library.slots(entry.layout),
        "sources": [*sources, ("text", request.text("the same text for everybody"))],
        "purse": await wallet.show(conn, request.actor),
    }


def told(refusal: Refusal) -> Invalid:
    """A rule's refusal, at the form's fields."""
    if not isinstance(refusal, Invalid):
        field = REFUSED.get(type(refusal))
        if field is None:
            raise refusal
        return Invalid((field, refusal.code, refusal.message))
    names = {"message_template": "text", "scheduled_at": "day", "audience_tags": "tags", "recipients": "numbers"}
    names |= {
        "sender_id": "sender",
        "messages_per_minute": "pace",
        "excluded_tags": "without",
        "not_written_days": "unwritten",
    }
    names |= {"audience_import": "import"}
    names |= {"param": "template", "rates": "number"}
    wrong = []
    for one in refusal.details["fields"]:
        field = names.get(one["field"], one["field"])
        wrong.append((field, one["issue"], words.CAMPAIGN_FORM.get(f"{field}.{one['issue']}", one["message"])))
    return Invalid(*wrong)
