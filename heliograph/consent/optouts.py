"""Opt-outs: people whom an organization must not write to, because they asked it not to.

They are checked (`opted_out_since` in people.sql) when a message is accepted, when a campaign is staged, and again just
before a message is sent. An opt-out is stored under the name that was used, and applies to all names of that person
(`people.py`): spellings of the number, other numbers, user ids.

The rule nobody may break: a person stays opted out until they ask for messages again themselves, or an operator takes
responsibility. An opt-out raises `contact.opted_out` once, in its own transaction. A second opt-out of the same person
raises nothing but is kept in the history (`history.py`): if the first is withdrawn, it takes effect.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import phones
from heliograph.base.actor import Actor, Principal
from heliograph.base.database.clock import iso, now
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7
from heliograph.consent import history
from heliograph.consent.history import Statement
from heliograph.suppliers.whatsapp_cloud.bodies import is_user_id
from heliograph.webhooks.recording import events


class RecipientOptedOut(Refusal):
    """The recipient has opted out of messages from this organization."""

    code, status = "recipient_opted_out", 409


KEYWORD, OPERATOR, ORGANIZATION, SUPPLIER = "keyword", "operator", "organization", "supplier"

#: An organization and a recipient: E.164, or a user id.
Pair = tuple[UUID, str]


class NotYoursToLift(Refusal):
    """This person opted out themselves, so only they can lift it: by replying START."""

    code, status = "opt_out_not_liftable", 409


class OptOut(msgspec.Struct, frozen=True, gc=False):
    """A person who asked an organization to stop writing."""

    organization_id: UUID
    #: The address that was written to, or from: E.164, or a user id.
    recipient: str
    since: datetime
    #: Its origin: "keyword", "operator", "organization" (a key or member), "supplier" (which was told by the person).
    source: str
    #: The word, as returned by `keywords.fold`, and the received message.
    keyword: str | None = None
    message_id: UUID | None = None
    #: The file that it came from.
    import_id: UUID | None = None


COLUMNS = "organization_id, recipient, since, source, keyword, message_id, import_id"

# Before an opt-out is written or withdrawn, the person's existing opt-outs are locked. Otherwise somebody who says STOP
# while an earlier opt-out is being withdrawn would be considered opted out already, and then be written to. Rows are
# locked in one order, so that two transactions with the same people cannot deadlock; and each person is looked up by
# the whole key, here and below: with a join, a list of 12,000 opted-out numbers took 84 s instead of one.
HOLD = """
SELECT 1 FROM (
       SELECT item.organization_id, names.name
         FROM unnest($1::uuid[], $2::text[]) AS item (organization_id, recipient)
              CROSS JOIN LATERAL names_of_person(item.organization_id, item.recipient) names
        ORDER BY 1, 2) person
       CROSS JOIN LATERAL (
       SELECT FROM opt_outs
        WHERE opt_outs.organization_id = person.organization_id AND opt_outs.person = person.name
        LIMIT 1 FOR UPDATE) held
"""


async def hold(conn: Connection, pairs: Collection[Pair]) -> None:
    """Lock people's opt-outs, before they or their history are changed in this transaction."""
    await conn.execute(HOLD, *_columns(pairs))


# An opt-out under another name counts.
SUPPRESS = f"""
INSERT INTO opt_outs ({COLUMNS})
SELECT item.*
  FROM unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::text[], $5::text[], $6::uuid[], $7::uuid[])
    AS item ({COLUMNS})
  LEFT JOIN LATERAL (SELECT since FROM opted_out_since(item.organization_id, item.recipient)) silence ON true
 WHERE silence.since IS NULL
 ORDER BY item.organization_id, person_of(item.recipient)
ON CONFLICT DO NOTHING
RETURNING organization_id, recipient
"""
# An opt-out that the organization may lift becomes one that it may not: also one that it recorded at the same moment.
OWN_WORD = """
UPDATE opt_outs SET since = item.since, source = item.source, keyword = item.keyword, message_id = item.message_id,
                    import_id = NULL
  FROM unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::text[], $5::text[], $6::uuid[])
       AS item (organization_id, recipient, since, source, keyword, message_id)
       CROSS JOIN LATERAL names_of_person(item.organization_id, item.recipient) names
       CROSS JOIN LATERAL (
       SELECT ctid AS place FROM opt_outs
        WHERE opt_outs.organization_id = item.organization_id AND opt_outs.person = names.name LIMIT 1) held
 WHERE opt_outs.ctid = held.place AND opt_outs.source = 'organization' AND item.source <> 'organization'
"""


async def suppress(conn: Connection, wanted: Sequence[OptOut], *, by: Principal | None = None) -> int:
    """Opt people out. An existing opt-out stays as it was, unless an organization recorded it and the person now opts
    out themselves. Runs in the caller's transaction. `by`: who recorded it on their behalf.

    Returns the number of webhook deliveries queued.
    """
    if not wanted:
        return 0
    organizations, recipients = [one.organization_id for one in wanted], [one.recipient for one in wanted]
    await conn.execute(HOLD, organizations, recipients)
    said = [
        Statement(one.organization_id, one.recipient, one.since, one.source, one.keyword, one.message_id, one.import_id)
        for one in wanted
    ]
    await history.record(conn, history.OUT, said, by=by)
    columns = (
        *(organizations, recipients, [one.since for one in wanted], [one.source for one in wanted]),
        *([one.keyword for one in wanted], [one.message_id for one in wanted]),
    )
    rows = await conn.fetch(SUPPRESS, *columns, [one.import_id for one in wanted])
    if any(one.source != ORGANIZATION for one in wanted):
        await conn.execute(OWN_WORD, *columns)
    new = {tuple(row) for row in rows}
    by_pair = {(one.organization_id, one.recipient): one for one in wanted}
    return await events.record(conn, [_event(one) for pair, one in by_pair.items() if pair in new])


LIFT = """
DELETE FROM opt_outs
 WHERE ctid = ANY (ARRAY(
       SELECT place FROM unnest($1::uuid[], $2::text[]) AS item (organization_id, recipient)
              CROSS JOIN LATERAL names_of_person(item.organization_id, item.recipient) names
              CROSS JOIN LATERAL (
              SELECT ctid AS place FROM opt_outs
               WHERE opt_outs.organization_id = item.organization_id AND opt_outs.person = names.name LIMIT 1) held))
"""


async def lift(conn: Connection, wanted: Sequence[Statement], *, by: Principal | None = None) -> set[Pair]:
    """Lift people's opt-outs, under any of their names; returns those who had opted out. `by`: who took
    responsibility."""
    if not wanted:
        return set()
    pairs = [(one.organization_id, one.recipient) for one in wanted]
    await hold(conn, pairs)
    had = await current(conn, pairs)
    lifted = [one for one in wanted if (one.organization_id, one.recipient) in had]
    if lifted:
        await history.end(conn, lifted, earlier_than=[LATEST[0]] * len(lifted))
        await history.record(conn, history.IN, lifted, by=by)
        await conn.execute(LIFT, *_columns(had))
    return had


LIFT_EARLIER = """
DELETE FROM opt_outs
 WHERE ctid = ANY (ARRAY(
       SELECT place FROM unnest($1::uuid[], $2::text[], $3::timestamptz[]) AS item (organization_id, recipient, at)
              CROSS JOIN LATERAL names_of_person(item.organization_id, item.recipient) names
              CROSS JOIN LATERAL (
              SELECT ctid AS place, since FROM opt_outs
               WHERE opt_outs.organization_id = item.organization_id AND opt_outs.person = names.name LIMIT 1) held
        WHERE held.since <= item.at))
"""


async def lift_earlier(conn: Connection, said: Sequence[Statement]) -> None:
    """Like `lift`, for statements that may arrive late: an opt-out later than the statement stays."""
    if not said:
        return
    pairs = [(one.organization_id, one.recipient) for one in said]
    await hold(conn, pairs)
    had = await current(conn, pairs)
    await history.end(conn, said, earlier_than=[one.at for one in said])
    await history.record(conn, history.IN, [one for one in said if (one.organization_id, one.recipient) in had])
    await conn.execute(LIFT_EARLIER, *_columns(pairs), [one.at for one in said])
    await restore(conn, pairs)


# A person's own statement takes precedence over what was recorded for them. Each name is looked up separately: with a
# join, a plan cached while the history was short scanned an organization's whole history for each person.
RESTORE = f"""
INSERT INTO opt_outs ({COLUMNS})
SELECT item.organization_id, standing.*
  FROM unnest($1::uuid[], $2::text[]) AS item (organization_id, recipient)
       CROSS JOIN LATERAL (
       SELECT said.*
         FROM names_of_person(item.organization_id, item.recipient) names
              CROSS JOIN LATERAL (
              SELECT recipient, at, source, keyword, message_id, import_id FROM consent_history
               WHERE organization_id = item.organization_id AND person = names.name AND said = 'out'
                 AND ended_at IS NULL
               ORDER BY source = 'organization', at LIMIT 1) said
        ORDER BY said.source = 'organization', said.at LIMIT 1) standing
       LEFT JOIN LATERAL (SELECT since FROM opted_out_since(item.organization_id, item.recipient)) silence ON true
 WHERE silence.since IS NULL
 ORDER BY item.organization_id, person_of(standing.recipient)
ON CONFLICT DO NOTHING
"""


async def restore(conn: Connection, pairs: Collection[Pair]) -> set[Pair]:
    """After opt-outs were withdrawn, keep those people opted out who have another one that still stands; returns
    them."""
    await conn.execute(RESTORE, *_columns(pairs))
    return await current(conn, pairs)


CURRENT = """
SELECT item.organization_id, item.recipient
  FROM unnest($1::uuid[], $2::text[]) AS item (organization_id, recipient)
       CROSS JOIN LATERAL (SELECT since FROM opted_out_since(item.organization_id, item.recipient)) silence
"""


async def current(conn: Connection, pairs: Collection[Pair]) -> set[Pair]:
    """The pairs whose person has opted out."""
    if not pairs:
        return set()
    rows = await conn.fetch(CURRENT, *_columns(pairs))
    return {(row["organization_id"], row["recipient"]) for row in rows}


def _columns(pairs: Collection[Pair]) -> tuple[list[UUID], list[str]]:
    return [organization for organization, _ in pairs], [recipient for _, recipient in pairs]


# A person may have opted out under several names before these were linked: what counts is what they said themselves.
GET = f"""
SELECT {COLUMNS} FROM opt_outs JOIN names_of_person($1, $2) names ON opt_outs.person = names.name
 WHERE organization_id = $1 ORDER BY source = 'organization', since LIMIT 1
"""


# Newest first: a partial index provides this order, and PostgreSQL uses it only with this predicate.
PAGE = f"""
SELECT {COLUMNS}, person FROM opt_outs
 WHERE organization_id = $1 AND source <> '' AND (since, person) < ($2, $3)
 ORDER BY since DESC, person DESC LIMIT $4
"""
LATEST = (datetime(9999, 1, 1, tzinfo=UTC), "~")


async def list_page(
    conn: Connection, actor: Actor, *, after: tuple[datetime, str] | None = None, limit: int
) -> list[tuple[OptOut, str]]:
    """Up to `limit` of an organization's opt-outs, newest first, each with its person: the second part of `after`."""
    rows = await conn.fetch(PAGE, actor.organization_id, *(after or LATEST), limit)
    return [(OptOut(*values), person) for *values, person in rows]


async def find(conn: Connection, actor: Actor, *, phone: str) -> OptOut | None:
    """A person's opt-out, by any of their names; None if there is none. Raises Invalid."""
    row = await conn.fetchrow(GET, actor.organization_id, await _recipient(conn, actor, phone))
    return None if row is None else OptOut(*row.values())


async def of_recipient(conn: Connection, actor: Actor, *, recipient: str) -> OptOut | None:
    """Like `find`, for the address stored with a message, which need not be a possible number: WhatsApp's are kept as
    received. Also None for an address under which nobody can opt out, such as a short code."""
    row = await conn.fetchrow(GET, actor.organization_id, recipient)
    return None if row is None else OptOut(*row.values())


async def add(conn: Connection, actor: Actor, *, phone: str, reason: str = "") -> OptOut:
    """Opt out a person who asked for it; an existing opt-out stays as it was. Raises Invalid.

    `phone`: a number as people in the organization's country write it, or internationally; or a user id.
    """
    recipient = await _recipient(conn, actor, phone)
    async with conn.transaction():
        had = await current(conn, [(actor.organization_id, recipient)])
        source = OPERATOR if actor.is_operator else ORGANIZATION
        await suppress(conn, [OptOut(actor.organization_id, recipient, now(), source)], by=actor.principal)
        row = await conn.fetchrow(GET, actor.organization_id, recipient)
        assert row is not None
        one = OptOut(*row.values())
        if not had:
            told: dict[str, object] = {"recipient": recipient, "how": source}
            await _record(conn, actor, "opt_out.added", one, after=told, reason=reason)
    return one


async def remove(conn: Connection, actor: Actor, *, phone: str, reason: str = "") -> OptOut:
    """Lift an opt-out on an operator's responsibility, and return it. `phone` as in `add`.

    An organization may lift only what it added itself. Raises Invalid, NotFound, NotYoursToLift.
    """
    recipient = await _recipient(conn, actor, phone)
    async with conn.transaction():
        await conn.execute(HOLD, [actor.organization_id], [recipient])
        row = await conn.fetchrow(GET, actor.organization_id, recipient)
        if row is not None and not actor.is_operator and row["source"] != ORGANIZATION:
            raise NotYoursToLift(since=iso(row["since"]), source=row["source"])
        source = OPERATOR if actor.is_operator else ORGANIZATION
        lifting = Statement(actor.organization_id, recipient, now(), source)
        if row is None or not await lift(conn, [lifting], by=actor.principal):
            raise NotFound("This number has not opted out.", resource="opt_out")
        one = OptOut(*row.values())
        told = {"recipient": one.recipient, "since": one.since, "how": one.source, "keyword": one.keyword}
        await _record(conn, actor, "opt_out.lifted", one, before=told, reason=reason)
    return one


async def _record(
    conn: Connection,
    actor: Actor,
    action: str,
    one: OptOut,
    *,
    before: dict[str, object] | None = None,
    after: dict[str, object] | None = None,
    reason: str = "",
) -> None:
    # Nothing recorded may identify the person: the log is kept when a person is erased.
    await audit.record(
        conn, actor, action, object_id=phones.masked(one.recipient), before=before, after=after, reason=reason
    )


COUNTRY = "SELECT country FROM organizations WHERE id = $1"


async def _recipient(conn: Connection, actor: Actor, phone: str) -> str:
    if is_user_id(phone):
        return phone
    country = await conn.fetchval(COUNTRY, actor.organization_id)
    recipient = phones.read(phone, region=country)
    if recipient is None:
        where = f"of {country}" if country else "with + and country code, since the organization has no country"
        raise Invalid(("phone", "pattern", f"`phone` must be a phone number {where}"))
    return recipient


def _event(one: OptOut) -> events.Event:
    data = {
        "contact": {
            "phone": one.recipient,
            "optedOutAt": iso(one.since),
            "source": one.source,
            "keyword": one.keyword,
            "messageId": one.message_id,
        }
    }
    return events.Event(
        organization_id=one.organization_id,
        id=uuid7(),
        kind="contact.opted_out",
        request_id=str(one.message_id or uuid7()),
        data=msgspec.json.encode(data).decode(),
        created_at=one.since,
    )
