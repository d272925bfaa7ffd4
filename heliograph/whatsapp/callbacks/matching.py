"""Matches the statuses that Meta reports to our messages.

A status identifies its message twice: by Meta's id (the wamid) and by ours, which every send carries and every status
echoes. So a message whose answer was lost is found by its first status, which then replaces the answer.

    before the answer     our id binds it; without our id it waits in whatsapp_early_statuses for the answer
    no match              kept as early for a week, then dropped: another program may send from this number too

A message of another number or organization is not a match. A number that moved to another account of its organization
has a second row there, but counts as the same number.

The rule nobody may break: a status moves only a message of the organization and number that it was sent to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import day_of, uuid7_floor, uuid_of_text
from heliograph.base.sentences import said
from heliograph.consent.people import Link
from heliograph.sending import attempts
from heliograph.suppliers.whatsapp_cloud.callbacks.items import StatusItem
from heliograph.suppliers.whatsapp_cloud.errors import Fault, Kind, Scope, classify
from heliograph.webhooks.recording import events
from heliograph.whatsapp.callbacks import conversations
from heliograph.whatsapp.status import Move, Pricing, pricing_of

#: The channel, as named in its queue rows.
KIND = "whatsapp"
#: A message waits for up to 30 days to be sent, and Meta reports on it for up to 30 more.
LIFE = timedelta(days=60)
#: Kinds of events raised for every message, for subscribers only.
ANNOUNCED = ("message.sent", "message.read")
#: Meta's statuses → ours. Any other status is ignored.
STATUSES = {"sent": "sent", "delivered": "delivered", "read": "read", "played": "read", "failed": "failed"}


class Matched(msgspec.Struct, frozen=True, gc=False):
    """A status, and the organization and number that it is for, according to its route."""

    organization_id: UUID
    number_id: UUID
    item: StatusItem


class WiderFailure(msgspec.Struct, frozen=True, gc=False):
    """A failure that concerns more than its message."""

    organization_id: UUID
    number_id: UUID
    message_id: UUID
    fault: Fault
    #: When Meta reported it; not in the future.
    at: datetime


class Found(msgspec.Struct, frozen=True, gc=False):
    """The effects of statuses."""

    moves: list[Move]
    #: Meta's names for users, in addition to those that we wrote to.
    names: set[Link]
    #: Failures that concern a window, a template, a number or an account.
    wider_failures: list[WiderFailure]

    @property
    def heard(self) -> list[Move]:
        """The moves by statuses, if an answer has moved others."""
        return [move for move in self.moves if not move.unsent]


class NamedUsers:
    """The users' names in recent answers, whose links were recorded with them: most statuses repeat their message's
    answer, and say nothing new. One per worker, since a message's statuses mostly come to the worker that sent it."""

    def __init__(self, most: int = 10_000) -> None:
        """`most`: at least half as many answers are remembered."""
        self._half = most // 2
        #: By message id, the user id.
        self._recent: dict[UUID, str] = {}
        self._older: dict[UUID, str] = {}

    def note(self, message_id: UUID, user_id: str) -> None:
        """Remember an answer that named the user's number as we wrote it, with a user id."""
        if len(self._recent) >= self._half:
            self._older, self._recent = self._recent, {}
        self._recent[message_id] = user_id

    def said(self, message_id: UUID, recipient: str, digits: str | None, user_id: str | None) -> bool:
        """Whether the answer gave the message's user the names that a status does."""
        known = self._recent.get(message_id) or self._older.get(message_id)
        return known is not None and known == user_id and (digits is None or recipient == f"+{digits}")


MATCH = """
SELECT m.organization_id, m.id, m.recipient, w.message_id IS NOT NULL AS known
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::uuid[], $5::date[], $6::date[]) WITH ORDINALITY
       AS item (organization_id, number_id, wamid, opaque, first, last, n)
  LEFT JOIN LATERAL (SELECT message_id FROM whatsapp_wamids
                      WHERE number_id = item.number_id AND wamid = item.wamid
                        AND born_on >= item.first AND born_on <= item.last LIMIT 1) w ON true
  LEFT JOIN LATERAL (SELECT organization_id, id, recipient FROM whatsapp_messages
                      WHERE organization_id = item.organization_id AND id = coalesce(w.message_id, item.opaque)
                        AND number_id = item.number_id AND direction = 'outbound' LIMIT 1) m ON true
 ORDER BY item.n
"""

# The rows of the same number in other accounts of its organization.
ELSEWHERE = """
SELECT asked.number_id, other.id
  FROM unnest($1::uuid[], $2::uuid[]) AS asked (organization_id, number_id)
  JOIN whatsapp_numbers known ON known.organization_id = asked.organization_id AND known.id = asked.number_id
  JOIN whatsapp_numbers other ON other.organization_id = known.organization_id AND other.digits = known.digits
                             AND other.id <> known.id
"""

WAMIDS = """
INSERT INTO whatsapp_wamids (number_id, wamid, organization_id, message_id, born_on, created_at)
SELECT unnest($1::uuid[]), unnest($2::text[]), unnest($3::uuid[]), unnest($4::uuid[]), unnest($5::date[]), now()
ON CONFLICT DO NOTHING
"""
EARLY = """
INSERT INTO whatsapp_early_statuses
            (number_id, wamid, status, at, failure_code, failure_evidence, pricing, received_at)
SELECT *, now() FROM unnest($1::uuid[], $2::text[], $3::text[], $4::timestamptz[], $5::text[], $6::text[], $7::text[])
       AS item (number_id, wamid, status, at, failure_code, failure_evidence, pricing)
 ORDER BY number_id, wamid, status
ON CONFLICT DO NOTHING
"""


async def match_statuses(conn: Connection, items: Sequence[Matched], named: NamedUsers | None = None) -> Found:
    """The moves that follow from statuses, to be made by the caller in the same transaction, and the names to keep
    after them (`name_users`), except those that answers gave (`named`). A status without a message is kept for the
    answer that may still arrive."""
    said = [one for one in items if one.item.status in STATUSES and not one.item.group]
    if not said:
        return Found([], set(), [])
    at = clock.now()
    # Several statuses of one message look it up once.
    keys = [_Key(one.organization_id, one.number_id, one.item.wamid, one.item.opaque) for one in said]
    asked = dict.fromkeys(keys)
    rows = await _look_up(conn, list(asked), at)
    others: dict[UUID, list[UUID]] = {}
    if unknown := [key for key in asked if key not in rows]:
        others = await _other_rows(conn, unknown)
        rows |= await _look_elsewhere(conn, unknown, others, at)
    moves: list[Move] = []
    early: list[tuple[object, ...]] = []
    bound: dict[tuple[UUID, str], tuple[UUID, UUID]] = {}
    names: set[Link] = set()
    wider_failures: list[WiderFailure] = []
    for one, key in zip(said, keys, strict=True):
        item, found = one.item, rows.get(key)
        status, when = STATUSES[item.status], min(item.at, at)
        failure = evidence = None
        if status == "failed":
            failure, evidence = failure_of(_fault(item)), _evidence(item)
        pricing = _pricing(item)
        if found is None:
            text = pricing.text if pricing else None
            # The answer is matched under the row of the number that sent it, whichever that was.
            known = (one.number_id, *others.get(one.number_id, ()))
            early += [(id, item.wamid, status, when, failure, evidence, text) for id in known]
            continue
        organization_id, id, recipient, is_known = found.message
        moves.append(Move(organization_id, id, status, when, failure, evidence, pricing))
        if status == "failed" and _concerns_more(_fault(item)):
            wider_failures.append(WiderFailure(organization_id, one.number_id, id, _fault(item), when))
        if not is_known:
            bound[found.number_id, item.wamid] = (organization_id, id)
        if not is_known or (item.user_id and not (named and named.said(id, recipient, item.recipient, item.user_id))):
            names |= links(organization_id, recipient, item.recipient, item.user_id)
    if early:
        await conn.execute(EARLY, *_columns(early))
    await bind(conn, bound)
    return Found(moves, names, wider_failures)


class _Key(NamedTuple):
    """What identifies a status's message."""

    organization_id: UUID
    number_id: UUID
    wamid: str
    opaque: str | None


class _Message(NamedTuple):
    """A message, and the row of the number that sent it."""

    number_id: UUID
    #: Organization, message, recipient, whether Meta's id is known.
    message: tuple[UUID, UUID, str, bool]


async def _look_up(conn: Connection, keys: Sequence[_Key], at: datetime) -> dict[_Key, _Message]:
    """The messages that were found."""
    opaque = [_id(key.opaque) for key in keys]
    days = _days(opaque, at)
    rows = await conn.fetch(
        MATCH,
        [key.organization_id for key in keys],
        [key.number_id for key in keys],
        [key.wamid for key in keys],
        opaque,
        [first for first, _ in days],
        [last for _, last in days],
    )
    found = zip(keys, map(tuple, rows), strict=True)
    return {key: _Message(key.number_id, row) for key, row in found if row[1] is not None}


async def _other_rows(conn: Connection, keys: Sequence[_Key]) -> dict[UUID, list[UUID]]:
    """The rows of the keys' numbers in other accounts."""
    numbers = list({(key.organization_id, key.number_id) for key in keys})
    rows = await conn.fetch(ELSEWHERE, [organization_id for organization_id, _ in numbers], [id for _, id in numbers])
    others: dict[UUID, list[UUID]] = {}
    for number_id, other in rows:
        others.setdefault(number_id, []).append(other)
    return others


async def _look_elsewhere(
    conn: Connection, keys: Sequence[_Key], others: Mapping[UUID, Sequence[UUID]], at: datetime
) -> dict[_Key, _Message]:
    """The same as `_look_up`, for messages that the number sent while it was in another account."""
    asked = {key._replace(number_id=other): key for key in keys for other in others.get(key.number_id, ())}
    if not asked:
        return {}
    found = await _look_up(conn, list(asked), at)
    return {asked[key]: message for key, message in found.items()}


def links(organization_id: UUID, recipient: str, digits: str | None, user_id: str | None) -> set[Link]:
    """Meta's names for the user that we wrote to: the digits (`wa_id`), and the user id."""
    names = (f"+{digits}" if digits and digits.isdigit() else None, user_id)
    return {(organization_id, recipient, name) for name in names if name and name != recipient}


async def name_users(conn: Connection, names: Collection[Link]) -> bool:
    """Store Meta's names for users; returns whether all are stored, as in `conversations.link`. Runs after the moves:
    code that accepts a message locks the wallet first, and then waits for conversations that others are about to
    merge."""
    return await conversations.link(conn, names)


async def bind(conn: Connection, bound: dict[tuple[UUID, str], tuple[UUID, UUID]]) -> None:
    """Record that Meta accepted these: (number, wamid) → (organization, message). Ends their open attempts."""
    if not bound:
        return
    ordered = sorted(bound.items(), key=lambda one: one[1][1].int)
    await attempts.mark_accepted(conn, KIND, [message for _, message in ordered], detail=said("known by a status"))
    await keep_ids(conn, dict(ordered))


async def keep_ids(conn: Connection, known: Mapping[tuple[UUID, str], tuple[UUID, UUID]]) -> None:
    """Store Meta's ids: (number, wamid) → (organization, message)."""
    if known:
        await conn.execute(
            WAMIDS, *_columns([(*key, *message, accepted_on(message[1])) for key, message in known.items()])
        )


def stops(item: StatusItem) -> bool:
    """Whether a failure concerns a template, a number or an account."""
    return _stops(_fault(item))


def _stops(fault: Fault) -> bool:
    return fault.scope not in (Scope.MESSAGE, Scope.USER, Scope.COUNTRY)


def _concerns_more(fault: Fault) -> bool:
    """Whether a failure concerns more than its message: those of `stops`, a closed window, and a user's pace."""
    return fault.kind in (Kind.WINDOW, Kind.PAIR) or _stops(fault)


FOUND = """
DELETE FROM whatsapp_early_statuses e
 USING unnest($1::uuid[], $2::text[]) AS answer (number_id, wamid)
 WHERE e.number_id = answer.number_id AND e.wamid = answer.wamid
RETURNING e.number_id, e.wamid, e.status, e.at, e.failure_code, e.failure_evidence, e.pricing
"""
# The copies that were kept under the number's rows in other accounts.
COPIES = """
DELETE FROM whatsapp_early_statuses e
 USING unnest($1::uuid[], $2::uuid[], $3::text[]) AS answer (organization_id, number_id, wamid)
  JOIN whatsapp_numbers known ON known.organization_id = answer.organization_id AND known.id = answer.number_id
  JOIN whatsapp_numbers other ON other.organization_id = known.organization_id AND other.digits = known.digits
                             AND other.id <> known.id
 WHERE e.number_id = other.id AND e.wamid = answer.wamid
"""
ANY_EARLY = "SELECT EXISTS (SELECT FROM whatsapp_early_statuses)"


async def adopt_early(conn: Connection, known: dict[tuple[UUID, str], tuple[UUID, UUID]]) -> Found:
    """The effects of statuses that arrived before their wamids were known: (number, wamid) → (organization, message).
    The caller makes the moves, and then applies the rest."""
    if not known or not await conn.fetchval(ANY_EARLY):
        return Found([], set(), [])
    rows = await conn.fetch(FOUND, [number for number, _ in known], [wamid for _, wamid in known])
    if rows:
        adopted = dict.fromkeys((row["number_id"], row["wamid"]) for row in rows)
        await conn.execute(COPIES, *_columns([(known[place][0], *place) for place in adopted]))
    moves: list[Move] = []
    wider_failures: list[WiderFailure] = []
    for row in rows:
        message = known[row["number_id"], row["wamid"]]
        evidence, pricing = row["failure_evidence"], pricing_of(row["pricing"])
        moves.append(Move(*message, row["status"], row["at"], row["failure_code"], evidence, pricing))
        fault = classify(int(evidence) if evidence else None)
        if row["status"] == "failed" and _concerns_more(fault):
            organization_id, id = message
            wider_failures.append(WiderFailure(organization_id, row["number_id"], id, fault, row["at"]))
    return Found(moves, set(), wider_failures)


# If a status is stored as early while another transaction stores its wamid, neither sees the other. So those of the
# last minute, longer than any transaction lasts, are checked again.
MISSED = """
SELECT e.number_id, e.wamid, w.organization_id, w.message_id
  FROM whatsapp_early_statuses e CROSS JOIN LATERAL (
       SELECT organization_id, message_id FROM whatsapp_wamids
        WHERE number_id = e.number_id AND wamid = e.wamid AND born_on >= $1 LIMIT 1) w
 WHERE e.received_at > now() - interval '1 minute' LIMIT 1000
"""


async def missed(conn: Connection) -> dict[tuple[UUID, str], tuple[UUID, UUID]]:
    """Early statuses whose wamid is known by now, for `adopt_early`."""
    rows = await conn.fetch(MISSED, (clock.now() - LIFE).date())
    return {(row["number_id"], row["wamid"]): (row["organization_id"], row["message_id"]) for row in rows}


async def announced(conn: Connection, moves: Sequence[Move]) -> dict[str, events.Wanting]:
    """By kind of ANNOUNCED, who wants it of these messages."""
    rows = await conn.fetch(events.WANTED, list({move.organization_id for move in moves})) if moves else []
    return {kind: frozenset((id, mode) for id, mode, kinds in rows if kind in kinds) for kind in ANNOUNCED}


def failure_of(fault: Fault) -> str:
    """The failure as the customer sees it: one of status.FAILURES."""
    return "template_unavailable" if fault.kind is Kind.TEMPLATE else fault.failure


def _fault(item: StatusItem) -> Fault:
    return classify(item.errors[0].code if item.errors else None)


def _evidence(item: StatusItem) -> str | None:
    """Meta's code, unchanged."""
    code = item.errors[0].code if item.errors else None
    return None if code is None else str(code)


def _pricing(item: StatusItem) -> Pricing | None:
    if item.free_entry:
        return Pricing("free_entry_point", "referral_conversion")
    pricing = item.pricing
    if pricing is None or not (pricing.type or pricing.category or pricing.billable is False):
        return None
    if pricing.type is None and pricing.billable is False:
        return Pricing("free", pricing.category or "")
    return Pricing(pricing.type or "regular", pricing.category or "")


def _id(text: str | None) -> UUID | None:
    try:
        return uuid_of_text(text) if text else None
    except ValueError:
        return None


def accepted_on(message_id: UUID) -> date:
    """The day on which a message was accepted, according to its id: Meta's ids for it are stored under that day."""
    return day_of(message_id)


def _days(opaque: Sequence[UUID | None], at: datetime) -> list[tuple[date, date]]:
    """The range of days that the messages of statuses may be from: our id gives the exact day. The echoed value may not
    be an id of ours."""
    first, last = at - LIFE, at + timedelta(days=1)
    low, high = uuid7_floor(first).int, uuid7_floor(last).int
    anywhere = first.date(), last.date()
    return [(day := accepted_on(id), day) if id is not None and low <= id.int < high else anywhere for id in opaque]


def _columns(rows: Sequence[tuple[object, ...]]) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)]
