"""What waits for an operator's decision, with what one needs to decide it: whose it is, what was decided for them
before, how much they send and where to, and which names it could be taken for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cache
from pathlib import Path
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.overview.installation.organizations import names
from heliograph.sms.accepting.sender_ids import SenderId

#: Shown at once; the oldest come first, and the next ones when these are decided.
MOST = 50
#: Names of other organizations that are told of one.
ALIKE = 5
#: Days (UTC, today included) of what an organization sent, and of which countries it sent to; most of these first.
DAYS, DAYS_OF_COUNTRIES, COUNTRIES = 30, 7, 5
#: What is read as another character, and what is not read at all: `M0ZBANK` reads as `MOZBANK`. The index
#: `sender_ids_alike` says the same; sender IDs are ASCII.
_READ_AS = str.maketrans("013457i8", "oleastlb", " ._&-")
_IN_SQL = "translate(lower({}), '013457i8 ._&-', 'oleastlb')"


class Alike(msgspec.Struct, frozen=True):
    """An approved sender ID of another organization."""

    organization: str
    value: str


class Sends(msgspec.Struct, frozen=True):
    """What an organization sends: live messages of DAYS; where those of DAYS_OF_COUNTRIES went, (ISO 3166, "001" for
    none; messages), most first; and where it may send to, None: everywhere."""

    volume: int
    countries: list[tuple[str, int]]
    allowed: list[str] | None


class Waiting(msgspec.Struct, frozen=True):
    """A sender ID to decide on."""

    organization_id: UUID
    organization: str
    #: organizations.state
    state: str
    organization_since: datetime
    sender: SenderId
    #: Who approved it first, where two have to (`sms.accepting.four_eyes.identity`), and their name; None, "": nobody.
    first_by: str | None
    first_name: str
    #: What its organization is asked, and what it answered; None: nothing.
    question: str | None
    answer: str | None
    #: Sender IDs of the organization by what was decided.
    approved: int
    rejected: int
    sends: Sends
    #: A name that is often imitated and reads alike; "": none.
    brand: str
    alike: list[Alike]


# The look-alikes by their index; a number reads as nothing but itself.
WAITING = f"""
SELECT s.organization_id, o.name AS organization, o.state, o.created_at AS organization_since,
       s.id, s.value, s.status, s.is_default, s.rejection_reason, s.created_at, s.reviewed_at,
       s.first_by, s.question, s.answer,
       (SELECT name FROM users WHERE id::text = s.first_by) AS first_name, known.approved, known.rejected,
       alike.ids AS alike_ids, alike.found AS alike
  FROM (SELECT * FROM sender_ids WHERE status = 'pending' ORDER BY id LIMIT $1) s
       CROSS JOIN LATERAL (SELECT * FROM organizations WHERE id = s.organization_id LIMIT 1) o
       CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE status IN ('approved', 'suspended')) AS approved,
                                  count(*) FILTER (WHERE status = 'rejected') AS rejected
                             FROM (SELECT status FROM sender_ids WHERE organization_id = s.organization_id
                                    LIMIT 1000) decided) known
       CROSS JOIN LATERAL (SELECT array_agg(organization_id ORDER BY id) AS ids, array_agg(value ORDER BY id) AS found
                             FROM (SELECT other.id, other.organization_id, other.value FROM sender_ids other
                                    WHERE other.status = 'approved' AND other.organization_id <> s.organization_id
                                      AND s.value ~ '[A-Za-z]'
                                      AND {_IN_SQL.format("other.value")} = {_IN_SQL.format("s.value")}
                                    ORDER BY other.id LIMIT $2) seen) alike
 ORDER BY s.id
"""


_TODAY = "(now() AT TIME ZONE 'UTC')::date"
# Each organization once, however many it asked for; its traffic in the sums by day.
SENDS = f"""
SELECT asked.id, o.allowed_countries AS allowed, sent.volume, gone.countries, gone.counts
  FROM unnest($1::uuid[]) AS asked (id)
       CROSS JOIN LATERAL (SELECT * FROM organizations WHERE id = asked.id LIMIT 1) o
       CROSS JOIN LATERAL (SELECT coalesce(sum(count), 0)::bigint AS volume FROM traffic_organizations
                            WHERE organization_id = asked.id AND day > {_TODAY} - {DAYS}) sent
       CROSS JOIN LATERAL (
           SELECT array_agg(country ORDER BY count DESC, country) AS countries,
                  array_agg(count ORDER BY count DESC, country) AS counts
             FROM (SELECT country, sum(count)::bigint AS count FROM traffic_days
                    WHERE organization_id = asked.id AND day > {_TODAY} - {DAYS_OF_COUNTRIES} AND mode = 'live'
                    GROUP BY 1 HAVING sum(count) > 0 ORDER BY 2 DESC, 1 LIMIT {COUNTRIES}) most) gone
"""


async def sends(conn: Connection, ids: Iterable[UUID]) -> dict[UUID, Sends]:
    """How much organizations send, and where to."""
    return {
        row["id"]: Sends(
            row["volume"],
            list(zip(row["countries"] or (), row["counts"] or (), strict=True)),
            row["allowed"],
        )
        for row in await conn.fetch(SENDS, list(set(ids)))
    }


async def waiting(conn: Connection) -> list[Waiting]:
    """Sender IDs to decide on, of all organizations, oldest first: MOST."""
    rows = await conn.fetch(WAITING, MOST, ALIKE)
    sent = await sends(conn, (row["organization_id"] for row in rows)) if rows else {}
    others = {id for row in rows for id in row["alike_ids"] or ()}
    called = await names(conn, others) if others else {}
    columns = SenderId.__struct_fields__
    return [
        Waiting(
            organization_id=row["organization_id"],
            organization=row["organization"],
            state=row["state"],
            organization_since=row["organization_since"],
            sender=SenderId(**{name: row[name] for name in columns}),
            first_by=row["first_by"],
            first_name=row["first_name"] or row["first_by"] or "",
            question=row["question"],
            answer=row["answer"],
            approved=row["approved"],
            rejected=row["rejected"],
            sends=sent[row["organization_id"]],
            brand=brand(row["value"]),
            alike=[
                Alike(called[id], value) for id, value in zip(row["alike_ids"] or (), row["alike"] or (), strict=True)
            ],
        )
        for row in rows
    ]


COUNT = """
SELECT count(*) AS count, min(created_at) AS oldest, max(created_at) AS newest
  FROM (SELECT created_at FROM sender_ids WHERE status = 'pending' ORDER BY id LIMIT $1) waiting
"""


class Waits(msgspec.Struct, frozen=True):
    """How many wait, at most MOST, and since when the first and the last of them do."""

    count: int
    oldest: datetime | None
    newest: datetime | None


async def waits(conn: Connection) -> Waits:
    """How many wait for a decision."""
    row = await conn.fetchrow(COUNT, MOST)
    assert row is not None
    return Waits(**row)


def read_as(value: str) -> str:
    """What a sender ID is read as at a glance."""
    return value.lower().translate(_READ_AS)


def brand(value: str) -> str:
    """The name of those that are often imitated that this one could be taken for; "": none. A number is none."""
    if value.isdecimal():
        return ""
    seen = read_as(value)
    return next((name for skeleton, name in _brands().items() if skeleton in (seen, seen[:-1])), "") or next(
        (name for skeleton, name in _brands().items() if len(skeleton) >= LONG and skeleton in seen), ""
    )


#: From this length on, a brand inside a longer name counts: `WHATSAPP ID`.
LONG = 5


@cache
def _brands() -> dict[str, str]:
    lines = Path(__file__).with_name("brands.txt").read_text().splitlines()
    return {read_as(line): line for line in lines if line and not line.startswith("#")}
