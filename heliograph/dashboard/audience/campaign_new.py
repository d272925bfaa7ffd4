"""D7b New campaign: to whom, what, when; with who gets it, in how many segments and at what cost beside the form."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec

from heliograph.accounts import quota
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Refusal
from heliograph.campaigns import audience, preview, recipients, template
from heliograph.campaigns.channels import sms
from heliograph.campaigns.channels.sms import Wish
from heliograph.campaigns.plan import MAX_PACE, CampaignAudienceEmpty
from heliograph.campaigns.preview import Preview
from heliograph.contacts import records
from heliograph.dashboard.audience import campaign_trial, campaigns, lists, words
from heliograph.pages.answers import Answer, Elsewhere, Shown, refused
from heliograph.pages.requests import Request
from heliograph.sms.accepting import sender_ids
from heliograph.sms.accepting.sender_ids import SenderIdNotApproved
from heliograph.sms.by_hand import own_numbers, saved_texts

HERE = "/campaigns"
FIELDS = (
    *(
        "name",
        "to",
        "tags",
        "match",
        "without",
        "numbers",
        "from",
        "sender",
        "text",
        "when",
        "day",
        "hour",
        "pace",
        "typed",
    ),
    "start",
)
#: From so many recipients on, their number has to be typed.
MANY = 1_000


class Given(msgspec.Struct, frozen=True):
    """What the form says, read."""

    tags: list[str] | None
    recipients: list[str] | None
    match: Literal["any", "all"]
    without: list[str]
    scheduled_at: datetime | None
    pace: int | None


async def show(request: Request) -> Answer:
    """The form; the address may fill in tags, a saved text, or the campaign that did not reach everybody."""
    typed = {name: request.query.get(name, "")[:2_000] for name in FIELDS}
    typed["to"] = "again" if typed["from"] else "tags"
    if (saved := lists.id_of(request.query.get("saved", ""))) is not None:
        async with request.reading() as conn:
            typed["text"] = (await saved_texts.get(conn, request.actor, id=saved)).body
    return Shown(template="audience/campaign_new.html", values=await _values(request, typed))


async def create(request: Request) -> Answer:
    """Look at it, try it on oneself, or make it."""
    typed = {name: request.form.get(name, "").strip() for name in FIELDS}
    wants = request.form.get("do", "preview")
    if wants != "create":
        typed["start"] = (
            str(int(typed["start"] or 0) + preview.EXAMPLES)
            if wants == "shuffle" and (typed["start"] or "0").isdecimal()
            else "0"
        )
    try:
        async with request.reading() as conn:
            given = await _read(request, conn, typed)
            seen = await _look(request, conn, typed, given)
    except Invalid as refusal:
        return refused("audience/campaign_new.html", _in_words(refusal), await _values(request, typed))
    if wants == "trial":
        return await _try(request, typed, seen)
    if wants != "create":
        return Shown(template="audience/campaign_new.html", values=await _values(request, typed, seen))
    if seen.would > MANY and typed["typed"] != str(seen.would):
        wrong = Invalid(("typed", "differs", "Type how many people get it."))
        return refused("audience/campaign_new.html", wrong, await _values(request, typed, seen))

    async def work(conn: Connection) -> str:
        wish = Wish(
            name=typed["name"],
            message_template=typed["text"],
            sender_id=lists.id_of(typed["sender"]),
            scheduled_at=given.scheduled_at,
            audience_tags=given.tags,
            audience_tag_match_mode=given.match,
            excluded_tags=given.without,
            recipients=given.recipients,
            messages_per_minute=given.pace,
        )
        return str((await sms.create(conn, request.actor, wish=wish, request_id=request.request_id)).id)

    try:
        id = await request.once(work)
    except Invalid as refusal:
        return refused("audience/campaign_new.html", _in_words(refusal), await _values(request, typed, seen))
    except (SenderIdNotApproved, CampaignAudienceEmpty) as refusal:
        field = "sender" if isinstance(refusal, SenderIdNotApproved) else "to"
        wrong = Invalid((field, refusal.code, refusal.message))
        return refused("audience/campaign_new.html", wrong, await _values(request, typed, seen))
    return Elsewhere(location=request.to(f"{HERE}/{id}"), notice=request.text("The campaign is made."))


async def _try(request: Request, typed: dict[str, str], seen: Preview) -> Answer:
    """Send it to whoever asks, and show the form as it was."""
    values = await _values(request, typed, seen)
    if not values["own"]:  # removed meanwhile, or their role sends nothing
        return Shown(template="audience/campaign_new.html", values=values)
    try:
        sent = await campaign_trial.send(request, typed, seen, values["own"])
    except Invalid as refusal:
        return refused("audience/campaign_new.html", refusal, values)
    return Shown(template="audience/campaign_new.html", values=values | {"sent": sent})


async def _read(request: Request, conn: Connection, typed: dict[str, str]) -> Given:
    """Raises Invalid with all that is wrong."""
    wrong: list[tuple[str, str, str]] = []
    tags: list[str] | None = None
    listed: list[str] | None = None
    without: list[str] = []
    if not typed["name"]:
        wrong.append(("name", "required", "Give it a name."))
    try:
        template.check(typed["text"], "text", smart=request.actor.smart_encoding, accents=request.actor.replace_accents)
    except Invalid as refusal:
        issue = refusal.details["fields"][0]["issue"]
        wrong.append(("text", issue, words.CAMPAIGN_FORM.get(f"text.{issue}", words.CAMPAIGN_FORM["text.length"])))
    if typed["to"] == "again" and typed["from"]:
        request.parameters = {"id": typed["from"]}
        listed = await recipients.again(conn, request.actor, campaign=await campaigns.find(request, conn))
        if not listed:
            wrong.append(("to", "empty", "Nobody is left who could be tried again."))
    elif typed["to"] == "numbers":
        listed = [one for one in typed["numbers"].replace(",", "\n").replace(";", "\n").split("\n") if one.strip()]
        if not 1 <= len(listed) <= audience.MAX_RECIPIENTS:
            wrong.append(("numbers", "length", "List 1 to 10,000 numbers, one a line."))
    else:
        try:
            tags = list(records.tags(_split(typed["tags"]), "tags"))
        except Invalid:
            tags = []
        if not 1 <= len(tags) <= audience.MAX_TAGS:
            wrong.append(("tags", "length", "Give 1 to 20 tags, separated by commas."))
    try:
        without = audience.excluded(_split(typed["without"]), tags)
    except Invalid:
        issue = "exclusive" if tags is None else "length"
        wrong.append(("without", issue, words.CAMPAIGN_FORM[f"without.{issue}"]))
    scheduled_at: datetime | None = None
    if typed["when"] == "later":
        try:
            zone = ZoneInfo(request.speech.zone)
            scheduled_at = datetime.combine(date.fromisoformat(typed["day"]), time.fromisoformat(typed["hour"]), zone)
        except ValueError:
            wrong.append(("day", "format", "Give a day and a time."))
    pace: int | None = None
    if typed["pace"]:
        if typed["pace"].isdecimal() and 1 <= int(typed["pace"][:9]) <= MAX_PACE:
            pace = int(typed["pace"])
        else:
            wrong.append(("pace", "range", "A pace is a number of messages a minute, from 1."))
    if wrong:
        raise Invalid(*wrong)
    return Given(tags, listed, "all" if typed["match"] == "all" else "any", without, scheduled_at, pace)


def _split(text: str) -> list[str]:
    return [one for one in text.split(",") if one.strip()]


async def _look(request: Request, conn: Connection, typed: dict[str, str], given: Given) -> Preview:
    start = int(typed["start"]) if typed["start"].isdecimal() and len(typed["start"]) < 6 else 0
    return await preview.look(
        conn,
        request.actor,
        text=typed["text"],
        tags=given.tags,
        match=given.match,
        without=given.without,
        recipients=given.recipients,
        start=start,
    )


async def _values(request: Request, typed: dict[str, str], seen: Preview | None = None) -> dict[str, Any]:
    async with request.reading() as conn:
        listed = await sender_ids.list_all(conn, request.actor)
        balance = await quota.get(conn, request.actor.organization_id)
        own = await own_numbers.get(conn, user_id=request.person.user_id)
    approved = [one for one in listed if one.status == "approved"]
    pace = int(typed["pace"]) if typed["pace"].isdecimal() and len(typed["pace"]) < 8 else 0
    return {
        "typed": typed,
        "seen": seen,
        "senders": approved,
        "sender_options": [("", request.text("the default")), *((str(one.id), one.value) for one in approved)],
        "cost": 0 if seen is None or request.mode == "test" else seen.would,
        "left": balance.remaining,
        "lasts": 60 * seen.would / pace if seen is not None and pace else None,
        "many": MANY,
        "own": own.phone if request.may("sms:send") else None,
        "may_prove": request.may("sms:send", mode="live"),
        "sent": None,
        "zone": request.speech.zone,
        "places": template.PLACES,
    }


def _in_words(refusal: Refusal) -> Invalid:
    """The rule's refusals, at the form's fields."""
    names = {"message_template": "text", "scheduled_at": "day", "audience_tags": "tags", "recipients": "numbers"}
    names |= {"sender_id": "sender", "messages_per_minute": "pace", "excluded_tags": "without"}
    found = []
    for one in refusal.details["fields"]:
        field = names.get(one["field"], one["field"])
        found.append((field, one["issue"], words.CAMPAIGN_FORM.get(f"{field}.{one['issue']}", one["message"])))
    return Invalid(*found)
