"""A preview of what a campaign would do if it started now: who gets it, in how many segments, and at what cost.

The rule nobody may break: it decides like staging, with the same functions, and writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from heliograph.accounts import organizations, send_defaults
from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7_floor
from heliograph.campaigns import audience, template
from heliograph.campaigns.audience import Recipient
from heliograph.campaigns.channels.sms import IsReachable, SmsCampaignSpec
from heliograph.campaigns.channels.whatsapp import Estimate, WhatsAppCampaignSpec
from heliograph.campaigns.filling import COLUMNS
from heliograph.campaigns.record import TABLE
from heliograph.classes.quiet import QuietHours
from heliograph.consent import optouts
from heliograph.contacts import recency, search
from heliograph.contacts.search import Filters
from heliograph.sealing import text_keys

#: How recent a campaign with the same content must be to cause a warning.
RECENT = timedelta(hours=24)
#: Maximum campaigns reported, and compared if their texts are sealed.
MOST_TWINS, MOST_COMPARED = 5, 100
#: Maximum people examined: the newest of a larger audience.
MOST = 10_000
EXAMPLES = 10
_HOURS = QuietHours()


class Example(msgspec.Struct, frozen=True):
    """What one recipient gets."""

    phone: str
    name: str
    text: str
    segments: int
    #: WhatsApp: the template's values.
    parameters: tuple[str, ...] = ()


class RenderedMessage(msgspec.Struct, frozen=True):
    """What would be sent to one recipient. `price`: WhatsApp only, in millionths."""

    text: str
    segments: int = 1
    parameters: tuple[str, ...] = ()
    price: int = 0


class Gap(msgspec.Struct, frozen=True):
    """Recipients for whom a value used in the content is not known."""

    #: One of `filling.COLUMNS`.
    column: str
    #: What they get instead; empty: nothing.
    default: str
    people: int
    #: What the first of them gets; None: they get no message, which needs the value.
    text: str | None


#: What would be sent to a recipient; None: they are skipped.
Render = Callable[[Recipient], RenderedMessage | None]


class Preview(msgspec.Struct, frozen=True):
    """An audience, from everybody found to those who get it: `found` is the sum of the six counts below."""

    found: int
    #: There are more people than were examined.
    is_more: bool
    #: Contacts with an excluded tag.
    excluded: int
    opted_out: int
    #: Messaged within `not_written_days`, or about to be by another campaign.
    recently_written: int
    not_allowed: int
    #: Invalid numbers, numbers that no supplier reaches, and people whose text would be too long, or empty.
    invalid: int
    would: int
    #: How many of those who get it would wait for the end of their quiet hours, and until when the last one would.
    quiet: int
    quiet_until: datetime | None
    #: (segments, number of people whose text has as many), fewest segments first.
    segments: list[tuple[int, int]]
    #: WhatsApp: total price in millionths.
    price: int
    examples: list[Example]
    #: Numbers of those who get it.
    getting: list[str]
    #: Values used in the content that are not known for everybody.
    gaps: list[Gap]
    #: WhatsApp: the currency of `price`, and what is available in it, in millionths.
    currency: str = ""
    available: int = 0


class Person(msgspec.Struct, frozen=True):
    """A person who may get it."""

    phone: str
    name: str | None
    first_name: str | None
    last_name: str | None
    opted_out: bool

    @property
    def known_name(self) -> str | None:
        """Their name; None for a contact without one, whose name is its number."""
        return None if self.name == self.phone else self.name


def sms(actor: Actor, text: str, *, reaches: IsReachable) -> Render:
    """What an SMS campaign would send to those it reaches."""
    fill = template.filler(text)

    def say(recipient: Recipient) -> RenderedMessage | None:
        phone, name, first_name, last_name, _ = recipient
        filled = fill((phone, name or "", first_name or "", last_name or ""))
        measured = template.measure(filled, smart=actor.smart_encoding, accents=actor.replace_accents)
        return RenderedMessage(filled, measured[1]) if measured is not None and reaches(phone, measured[1]) else None

    return say


def whatsapp(outlook: Estimate) -> Render:
    """What a WhatsApp campaign would send."""

    def say(recipient: Recipient) -> RenderedMessage | None:
        found = outlook.say(recipient)
        return None if found is None else RenderedMessage(found[0], 1, found[1], found[2])

    return say


async def preview_audience(
    conn: Connection,
    actor: Actor,
    *,
    say: Render,
    tags: Sequence[str] | None = None,
    match: Literal["any", "all"] = "any",
    without: Sequence[str] = (),
    recipients: Sequence[str] | None = None,
    imported: UUID | None = None,
    not_written_days: int | None = None,
    start: int = 0,
    waits: datetime | None = None,
    pace: int | None = None,
    asked: Sequence[tuple[str, str]] = (),
    needs_all: bool = False,
) -> Preview:
    """Examine an audience: contacts by tag or import, `without` those that have any of these tags, or numbers.

    `not_written_days`: skip those messaged within this many days. `start`: where the examples begin, to show others
    each time. `waits`: when the campaign begins, if its messages wait for the end of quiet hours; `pace`: how many it
    sends a minute. `asked`: the columns that the content has, each with its default. `needs_all`: it is not sent with
    an empty value.
    """
    if imported is not None:
        listing = await audience.imported_people(conn, actor, imported=imported, limit=MOST + 1)
        some = [one for one in listing[:MOST] if not set(without).intersection(one.tags)]
        excluded, wrong, is_more = min(len(listing), MOST) - len(some), 0, len(listing) > MOST
        silent = await _silent(conn, actor, [one.phone for one in some])
        people = [Person(one.phone, one.name, one.first_name, one.last_name, one.phone in silent) for one in some]
    elif tags is not None:
        found = await search.search(conn, actor, filters=Filters(tags=tuple(tags), match=match), limit=MOST)
        listed = [one for one in found.contacts[:MOST] if not set(without).intersection(one.tags)]
        excluded = min(len(found.contacts), MOST) - len(listed)
        people = [Person(one.phone, one.name, one.first_name, one.last_name, one.opted_out) for one in listed]
        is_more, wrong = len(found.contacts) > MOST or found.seen is not None, 0
    else:
        numbers = await audience.numbers(recipients or [])
        people, is_more, wrong = await _listed(conn, actor, numbers.valid), False, len(numbers.invalid)
        excluded = 0
    # Of contacts in several spellings of a number, one gets it.
    people = list({phones.person(one.phone): one for one in reversed(people)}.values())[::-1]
    recent = set[str]()
    if not_written_days is not None:
        whom = (actor.organization_id, actor.mode, [one.phone for one in people])
        since = clock.now() - timedelta(days=not_written_days)
        recent = await recency.written(conn, *whom, after=since) | await recency.awaiting(conn, *whom)
    seen = _counted(actor, say, people, is_more, excluded, wrong, recent, start, asked, needs_all)
    if waits is None or actor.mode != "live":
        return seen
    setting = (await send_defaults.get(conn, organization_id=actor.organization_id)).quiet_hours
    # Those whose turn comes when it has become quiet wait, too.
    turns = (waits + timedelta(minutes=n / pace) if pace else waits for n in range(len(seen.getting)))
    opens = [
        at
        for one, turn in zip(seen.getting, turns, strict=True)
        if (at := _HOURS.until(setting, one, turn)) is not None
    ]
    return msgspec.structs.replace(seen, quiet=len(opens), quiet_until=max(opens, default=None))


KNOWN = """
SELECT phone, name, first_name, last_name FROM contacts
 WHERE organization_id = $1 AND mode = $2 AND phone = ANY ($3)
"""


async def _listed(conn: Connection, actor: Actor, numbers: Sequence[str]) -> list[Person]:
    spelled = await phones.in_turns(phones.spellings, numbers)
    rows = await conn.fetch(KNOWN, actor.organization_id, actor.mode, [one for forms in spelled for one in forms])
    known = {row["phone"]: row for row in rows}
    silent = await _silent(conn, actor, numbers)
    people = []
    for number, forms in zip(numbers, spelled, strict=True):
        # The names of their contact in any spelling, first of one with this very number.
        theirs = next((one for form in (number, *forms) if (one := known.get(form)) is not None), None)
        phone, name, first, last = (None, None, None, None) if theirs is None else theirs.values()
        people.append(Person(number, None if name == phone else name, first, last, number in silent))
    return people


async def _silent(conn: Connection, actor: Actor, numbers: Sequence[str]) -> set[str]:
    pairs: list[tuple[UUID, str]] = [(actor.organization_id, number) for number in numbers]
    return {recipient for _, recipient in await optouts.current(conn, pairs)}


def _counted(
    actor: Actor,
    say: Render,
    people: Sequence[Person],
    is_more: bool,
    excluded: int,
    wrong: int,
    recent: set[str],
    start: int,
    asked: Sequence[tuple[str, str]],
    needs_all: bool,
) -> Preview:
    opted_out, recently_written, not_allowed, invalid = 0, 0, 0, wrong
    spread: Counter[int] = Counter()
    getting: list[tuple[Person, RenderedMessage]] = []
    gaps: dict[tuple[str, str, bool], list[RenderedMessage | None]] = {}
    for one in people:
        if one.opted_out:
            opted_out += 1
            continue
        if one.phone in recent:
            recently_written += 1
            continue
        if organizations.not_allowed(actor.allowed_countries, one.phone) is not None:
            not_allowed += 1
            continue
        known = (one.phone, one.known_name, one.first_name, one.last_name, None)
        said = say(known)
        for column, default in asked:
            if not (known[COLUMNS.index(column)] or "").strip() and (said is not None or (needs_all and not default)):
                gaps.setdefault((column, default, said is None), []).append(said)
        if said is None:
            invalid += 1
            continue
        spread[said.segments] += 1
        getting.append((one, said))
    start = start % len(getting) if getting else 0
    chosen = (getting[start:] + getting[:start])[:EXAMPLES]
    return Preview(
        found=len(people) + excluded + wrong,
        is_more=is_more,
        excluded=excluded,
        opted_out=opted_out,
        recently_written=recently_written,
        not_allowed=not_allowed,
        invalid=invalid,
        would=len(getting),
        quiet=0,
        quiet_until=None,
        segments=sorted(spread.items()),
        price=sum(said.price for _, said in getting),
        examples=[
            Example(one.phone, one.known_name or "", said.text, said.segments, said.parameters) for one, said in chosen
        ],
        getting=[one.phone for one, _ in getting],
        gaps=[
            Gap(column, default, len(some), some[0].text if some[0] else None)
            for (column, default, _), some in gaps.items()
        ],
    )


class Duplicate(msgspec.Struct, frozen=True):
    """An earlier campaign with the same content."""

    id: UUID
    name: str
    created_at: datetime


# Uses the index of a channel's campaigns, from slightly before the earliest relevant id. Sealed texts have to be opened
# for comparison.
DUPLICATES = f"""
SELECT id, name, created_at, message_template FROM campaigns
 WHERE organization_id = $1 AND channel = $2 AND id > $3 AND mode = $4 AND created_at > now() - $5::interval
   AND status NOT IN ('canceled', 'failed') AND (message_template = $6 OR (template_id, parameters) = ($7, $8::jsonb)
        OR ($6::text IS NOT NULL AND message_template LIKE '{text_keys.MARK}%'))
 ORDER BY id DESC LIMIT $9
"""


TEMPLATE = """
SELECT t.id FROM whatsapp_numbers n
  JOIN whatsapp_templates t ON t.organization_id = n.organization_id AND t.account_id = n.account_id
 WHERE n.organization_id = $1 AND n.id = $2 AND t.name = $3 AND t.language = $4
"""


async def duplicates(
    conn: Connection, actor: Actor, *, spec: SmsCampaignSpec | WhatsAppCampaignSpec
) -> list[Duplicate]:
    """Campaigns of the last 24 hours with the same content as this one, newest first: somebody may already have sent
    it."""
    channel, text, template_id, parameters = "sms", None, None, None
    if isinstance(spec, WhatsAppCampaignSpec):
        channel, parameters = "whatsapp", msgspec.json.encode(list(spec.parameters)).decode()
        template_id = await conn.fetchval(TEMPLATE, actor.organization_id, spec.number_id, spec.template, spec.language)
    else:
        text = spec.message_template
    since = uuid7_floor(clock.now() - RECENT - timedelta(hours=1))
    rows = await conn.fetch(
        DUPLICATES,
        actor.organization_id,
        channel,
        since,
        actor.mode,
        RECENT,
        text,
        template_id,
        parameters,
        MOST_COMPARED,
    )
    stored = [(row["id"], row["message_template"]) for row in rows]
    texts = await text_keys.opened_of(conn, actor.organization_id, TABLE, stored)
    return [Duplicate(row["id"], row["name"], row["created_at"]) for row in rows if texts[row["id"]] == text][
        :MOST_TWINS
    ]
