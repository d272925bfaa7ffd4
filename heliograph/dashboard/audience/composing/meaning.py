"""Interprets the fields of a campaign's form, and previews the campaign.

The rule nobody may break: input that cannot be understood is reported at its field; it is never treated as empty.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from heliograph.accounts import organizations
from heliograph.base import csv_files, phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid_in
from heliograph.campaigns import audience, filling, plan, template
from heliograph.campaigns.channels import sms, whatsapp
from heliograph.campaigns.filling import COLUMNS, Filling
from heliograph.campaigns.plan import MAX_PACE
from heliograph.campaigns.views import preview, recipients
from heliograph.campaigns.views.preview import Preview
from heliograph.classes import kinds
from heliograph.contacts import records
from heliograph.dashboard import choosing
from heliograph.dashboard.audience import words
from heliograph.dashboard.audience.composing.form import form_refusal, found, moment, numbers
from heliograph.pages.forms import figures, local_times
from heliograph.pages.requests import Request
from heliograph.sms.accepting import sender_ids
from heliograph.sms.dispatch import routing
from heliograph.whatsapp import library
from heliograph.whatsapp.library import Entry

#: Pasted numbers of each kind that are shown with their interpretation.
SAMPLES = 3


class Filled(msgspec.Struct, frozen=True):
    """A template, and the sources of its values."""

    number: UUID
    entry: Entry
    parameters: tuple[Filling, ...]


class Given(msgspec.Struct, frozen=True):
    """The parsed form."""

    name: str
    tags: list[str] | None
    recipients: list[str] | None
    #: The campaign that the recipients did not get.
    again_of: UUID | None
    imported: UUID | None
    match: Literal["any", "all"]
    without: list[str]
    #: Contacts who were written to within this number of days are skipped.
    unwritten: int | None
    scheduled_at: datetime | None
    pace: int | None
    #: The text of an SMS.
    text: str
    sender: UUID | None
    #: One of `kinds.NAMES`, of an SMS: a copy has the class of the original, which a program may have chosen.
    traffic_class: str
    #: None for an SMS.
    filled: Filled | None
    #: Pasted numbers: text → the number it was read as, None: not a number.
    pasted: Mapping[str, str | None]

    @property
    def unread(self) -> int:
        """How many pasted texts are not numbers."""
        return sum(number is None for number in self.pasted.values())

    @property
    def national(self) -> list[tuple[str, str, bool]]:
        """Some of the pasted texts without a country code, their numbers, and whether their ranges are in use: first
        those that are not numbers (""), then those in no known range, such as another country's national numbers."""
        texts = [(text, number) for text, number in self.pasted.items() if not phones.is_international(text)]
        none = [(text, "", False) for text, number in texts if not number]
        read = [(text, number, phones.is_valid(number)) for text, number in texts if number]
        doubtful, known = [one for one in read if not one[2]], [one for one in read if one[2]]
        return none[:SAMPLES] + doubtful[:SAMPLES] + known[:SAMPLES]

    @property
    def digest(self) -> str:
        """Identifies what the check shows: who gets it, what and when. Neither the name is part of it, nor who of an
        earlier campaign is left."""
        who = (self.again_of, None if self.again_of else self.recipients, self.imported, self.tags, self.match)
        when = (self.without, self.unwritten, self.scheduled_at, self.pace)
        one = self.filled
        said = (self.text, self.sender) if one is None else (one.number, one.entry.template.id, one.parameters)
        return hashlib.sha256(msgspec.json.encode((who, when, said))).hexdigest()

    @property
    def spec(self) -> sms.SmsCampaignSpec | whatsapp.WhatsAppCampaignSpec:
        """The campaign to create."""
        common: dict[str, Any] = {
            "name": self.name,
            "scheduled_at": self.scheduled_at,
            "audience_tags": self.tags,
            "audience_import": self.imported,
            "audience_tag_match_mode": self.match,
            "excluded_tags": self.without,
            "not_written_days": self.unwritten,
            "recipients": self.recipients,
            "again_of": self.again_of,
            "messages_per_minute": self.pace,
        }
        if self.filled is None:
            return sms.SmsCampaignSpec(
                message_template=self.text, sender_id=self.sender, traffic_class=self.traffic_class, **common
            )
        one = self.filled
        chosen = one.entry.template
        return whatsapp.WhatsAppCampaignSpec(
            number_id=one.number, template=chosen.name, language=chosen.language, parameters=one.parameters, **common
        )


async def read(request: Request, conn: Connection, typed: dict[str, str]) -> Given:
    """Parse the form. Raises Invalid with everything that is wrong."""
    wrong: list[tuple[str, str, str]] = []
    try:
        plan.checked_name(typed["name"])
    except Invalid as refusal:
        issue = refusal.details["fields"][0]["issue"] if typed["name"] else "required"
        wrong.append(("name", issue, words.CAMPAIGN_FORM[f"name.{issue}"]))
    sender: UUID | None = None
    said: Filled | None = None
    if typed["channel"] == "whatsapp":
        said = await _template(request, conn, typed, wrong)
    else:
        _text(request, typed, wrong)
        sender = await _sender(request, conn, typed, wrong)
    pasted = await _pasted(request, conn, typed, wrong) if typed["to"] == "numbers" else {}
    tags, listed, without = await _audience(request, conn, typed, pasted, wrong)
    imported = uuid_in(typed["import"]) if typed["to"] == "import" else None
    scheduled_at: datetime | None = None
    if typed["when"] == "later":
        try:
            scheduled_at = plan.checked_time(moment(typed, request.locale.zone), clock.now())
        except local_times.SkippedTime:
            wrong.append(("day", "skipped", words.CAMPAIGN_FORM["day.skipped"]))
        except ValueError:
            wrong.append(("day", "format", words.CAMPAIGN_FORM["day.format"]))
        except Invalid:
            wrong.append(("day", "range", words.CAMPAIGN_FORM["day.range"]))
    pace = _count(typed, "pace", MAX_PACE, wrong)
    unwritten = _count(typed, "unwritten", audience.MOST_DAYS, wrong)
    if wrong:
        raise Invalid(*wrong)
    return Given(
        name=typed["name"],
        tags=tags,
        recipients=listed,
        again_of=uuid_in(typed["from"]) if typed["to"] == "again" else None,
        imported=imported,
        match="all" if typed["match"] == "all" else "any",
        without=without,
        unwritten=unwritten,
        scheduled_at=scheduled_at,
        pace=pace,
        text=typed["text"],
        sender=sender,
        traffic_class=typed["class"] if typed["class"] in kinds.NAMES else sms.USUAL_CLASS,
        filled=said,
        pasted=pasted,
    )


def _count(typed: Mapping[str, str], field: str, most: int, wrong: list[tuple[str, str, str]]) -> int | None:
    """A number from 1 to `most`; None: the field is empty, or invalid (and added to `wrong`)."""
    refused = (field, "range", words.CAMPAIGN_FORM[f"{field}.range"])
    try:
        return figures.within(typed[field], Invalid(refused), least=1, most=most)
    except Invalid:
        wrong.append(refused)
        return None


async def _sender(
    request: Request, conn: Connection, typed: Mapping[str, str], wrong: list[tuple[str, str, str]]
) -> UUID | None:
    """The sender ID that its value or id means; None: the default, or an unknown one (added to `wrong`)."""
    if not typed["sender"]:
        return None
    try:
        return (await sender_ids.find(conn, request.actor, which=typed["sender"])).id
    except NotFound:
        wrong.append(("sender", "unknown", words.CAMPAIGN_FORM["sender.unknown"]))
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
    """(tags, or listed numbers, excluded tags)"""
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
            tags = list(records.tags(csv_files.split(typed["tags"]), "tags"))
        except Invalid:
            tags = []
        if not 1 <= len(tags) <= audience.MAX_TAGS:
            wrong.append(("tags", "length", words.CAMPAIGN_FORM["tags.length"]))
    try:
        return tags, listed, audience.excluded(csv_files.split(typed["without"]), is_listed=listed is not None)
    except Invalid:
        issue = "exclusive" if listed is not None else "length"
        wrong.append(("without", issue, words.CAMPAIGN_FORM[f"without.{issue}"]))
        return tags, listed, []


async def _pasted(
    request: Request, conn: Connection, typed: dict[str, str], wrong: list[tuple[str, str, str]]
) -> dict[str, str | None]:
    """Pasted numbers, parsed as written in the organization's country: text → number. A national number is never read
    as another country's; the check shows how it was read."""
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


async def _template(
    request: Request, conn: Connection, typed: dict[str, str], wrong: list[tuple[str, str, str]]
) -> Filled | None:
    number, entry = uuid_in(typed["number"]), await entry_of(request, conn, typed)
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
        # Checked alone, as if the others' columns had values, to know which one is refused.
        others: list[Filling] = [Filling(column="name")] * count
        others[n - 1] = one
        try:
            filling.check(entry.layout, others)
        except Invalid:
            wrong.append((f"t{n}", "refused", words.CAMPAIGN_FORM["parameter.refused"]))
    return Filled(number, entry, tuple(fillings))


async def entry_of(request: Request, conn: Connection, typed: dict[str, str]) -> Entry | None:
    """The template chosen in the form; None if there is none, or no such one."""
    if (id := uuid_in(await choosing.meant(conn, request, typed["template"]))) is None:
        return None
    try:
        return await library.get(conn, request.actor, id=id)
    except NotFound:
        return None


async def preview_campaign(request: Request, conn: Connection, typed: dict[str, str], given: Given) -> Preview:
    """Preview the campaign. Raises Invalid for a number or template that cannot be sent."""
    spec, waits, purse = given.spec, None, ("", 0)
    if isinstance(spec, whatsapp.WhatsAppCampaignSpec):
        try:
            outlook = await whatsapp.estimate(conn, request.actor, spec=spec, people=preview.MOST)
        except Refusal as refusal:
            raise form_refusal(refusal) from None
        say, purse = preview.whatsapp(outlook), (outlook.currency, outlook.available)
    else:
        reaches = await sms.reachability(conn, request.actor, request.services.sms, spec=spec)
        say = preview.sms(request.actor, given.text, reaches=reaches)
        # Quiet hours do not apply to simulators (`sms.dispatch.channel`).
        if await routing.waits_for_day(conn, spec.traffic_class):
            waits = max(clock.now(), spec.scheduled_at or clock.now())
    seen = await preview.preview_audience(
        conn,
        request.actor,
        say=say,
        tags=given.tags,
        match=given.match,
        without=given.without,
        recipients=given.recipients,
        imported=given.imported,
        not_written_days=given.unwritten,
        start=start(typed),
        waits=waits,
        pace=given.pace,
        asked=template.fallbacks(given.text) if given.filled is None else filling.fallbacks(given.filled.parameters),
        needs_all=given.filled is not None,
    )
    counts = {"found": seen.found + given.unread, "invalid": seen.invalid + given.unread}
    return msgspec.structs.replace(seen, **counts, currency=purse[0], available=purse[1])


def start(typed: Mapping[str, str]) -> int:
    """Where the examples begin, from the form's hidden field."""
    return int(typed["start"]) if typed["start"].isdecimal() and len(typed["start"]) < 6 else 0
