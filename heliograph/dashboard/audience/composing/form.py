"""A campaign's form: its fields as typed or prefilled, and the field at which a refusal is shown."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from heliograph.base import csv_files
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid_in
from heliograph.campaigns import filling, record
from heliograph.campaigns.filling import MOST
from heliograph.campaigns.plan import CampaignAudienceEmpty
from heliograph.campaigns.record import Campaign
from heliograph.dashboard.audience import words
from heliograph.pages.forms import local_times
from heliograph.pages.requests import Request
from heliograph.sms.accepting.sender_ids import SenderIdNotApproved
from heliograph.sms.by_hand import saved_texts
from heliograph.whatsapp.mirror.numbers import PhoneNumberUnavailable
from heliograph.whatsapp.mirror.templates import (
    TemplateNotApproved,
    TemplateNotFound,
    TemplateNotSendable,
    TemplateParameterMismatch,
)

#: Audience and time; then the content, by channel. A template's n-th parameter is `p<n>`, a column or `text`, and
#: `t<n>`: the text, or the default where the column is empty.
FIELDS = (
    *("channel", "name", "to", "tags", "match", "without", "numbers", "from", "when", "day", "hour", "pace", "typed"),
    *("start", "draft", "sender", "text", "number", "template", "import", "unwritten", "class"),
)
#: A refusal, and the field at which it is shown.
REFUSED: Mapping[type[Refusal], str] = {
    SenderIdNotApproved: "sender",
    CampaignAudienceEmpty: "to",
    PhoneNumberUnavailable: "number",
    TemplateNotApproved: "template",
    TemplateNotFound: "template",
    TemplateNotSendable: "template",
    TemplateParameterMismatch: "template",
}


async def prefilled(request: Request) -> dict[str, str]:
    """The form prefilled from the address: tags, a saved text, a template, a campaign to copy, or one that did not
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
    """The form as submitted."""
    kept = {name: form.get(name, "").strip() for name in FIELDS}
    for n in range(1, MOST + 1):
        if f"p{n}" not in form:
            break
        kept |= {f"p{n}": form[f"p{n}"], f"t{n}": form.get(f"t{n}", "").strip()}
    return kept


def moment(typed: Mapping[str, str], zone: str) -> datetime:
    """The time that day and hour mean in a time zone. Raises ValueError, and SkippedTime."""
    return local_times.read(typed["day"], typed["hour"], zone)


async def found(request: Request, conn: Connection, id: UUID) -> Campaign:
    """A campaign of either channel. Raises NotFound."""
    try:
        return await record.get(conn, request.actor, id=id)
    except NotFound:
        return await record.get(conn, request.actor, id=id, channel="whatsapp")


def _copied(request: Request, campaign: Campaign) -> dict[str, str]:
    """The form prefilled to create the same campaign again, or one for the recipients whom it did not reach, as a list
    of their numbers. The listed numbers of a campaign are not kept once it is created."""
    content, is_again = campaign.content, not request.query.get("copy")
    kept = {
        "channel": campaign.channel,
        "name": campaign.name,
        "pace": str(campaign.messages_per_minute or ""),
        "tags": csv_files.joined(campaign.audience_tags or ()),
        "match": campaign.audience_tag_match_mode,
        "without": "" if is_again else csv_files.joined(campaign.excluded_tags),
        "unwritten": "" if is_again else str(campaign.not_written_days or ""),
    }
    if not is_again and campaign.audience_import is not None:
        kept |= {"to": "import", "import": str(campaign.audience_import)}
    elif not is_again and campaign.audience_tags is None:
        kept["to"] = "numbers"
    if campaign.channel == "sms":
        kept["class"] = content.get("class", "")
        return kept | {"text": content["message_template"], "sender": str(content["sender_id"])}
    kept |= {"number": str(content["number_id"]), "template": str(content["template_id"])}
    for n, one in enumerate(filling.read(content["parameters"]), 1):
        kept |= {f"p{n}": one.column or "text", f"t{n}": (one.default if one.column else one.text) or ""}
    return kept


def numbers(text: str) -> list[str]:
    """Pasted numbers: one per line, or separated by commas or semicolons."""
    return [one for one in text.replace(",", "\n").replace(";", "\n").split("\n") if one.strip()]


def form_refusal(refusal: Refusal) -> Invalid:
    """A rule's refusal, assigned to the form's fields."""
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
