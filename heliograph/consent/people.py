"""People: which names belong to one person.

A person has as many names as there are ways to write to them: spellings of a number, which `phones.person` normalizes
to one; and numbers and user ids that, according to Meta, belong to the same person. Those are linked here, separately
in each organization, since user ids are scoped to one. Consent, windows and conversations are looked up by all names of
a person (people.sql).

A number that its person has moved away from (`leave`) stays linked until somebody else writes from it or changes to it:
then it is another person's (`take`).

The rule nobody may break: nothing else removes a link, and whoever removes one hands on the opt-outs
(`consent.handing_on`). A reassigned number keeps its old owner's opt-out, which costs a message; a lost link would send
one to somebody who said STOP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7

#: An organization, and two names of one person: E.164, or a user id.
Link = tuple[UUID, str, str]

# Names that are already linked, as most are, cost one look-up. Whose a number is that its person has left, nobody knows
# before somebody writes from it.
UNKNOWN = """
SELECT item.n FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS item (organization_id, one, other, n)
  LEFT JOIN LATERAL (SELECT person, left_at IS NOT NULL AND taken_at IS NULL AS is_left FROM person_names
                      WHERE organization_id = item.organization_id AND name = item.one LIMIT 1) one ON true
  LEFT JOIN LATERAL (SELECT person, left_at IS NOT NULL AND taken_at IS NULL AS is_left FROM person_names
                      WHERE organization_id = item.organization_id AND name = item.other LIMIT 1) other ON true
 WHERE (one.person = other.person) IS NOT TRUE AND one.is_left IS NOT TRUE AND other.is_left IS NOT TRUE
"""
# Two transactions that link people of one organization take turns, so that each sees all existing groups.
TURN = "SELECT pg_advisory_xact_lock(hashtextextended('people ' || id, 0)) FROM unnest($1::text[]) AS turn (id)"
GROUPS = """
SELECT known.organization_id, known.name, known.person
  FROM unnest($1::uuid[], $2::text[]) AS item (organization_id, name) CROSS JOIN LATERAL (
       SELECT * FROM person_names WHERE organization_id = item.organization_id AND name = item.name LIMIT 1) known
"""
JOIN = """
UPDATE person_names SET person = v.person
  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS v (organization_id, old, person)
 WHERE person_names.organization_id = v.organization_id AND person_names.person = v.old
"""
NAME = """
INSERT INTO person_names (organization_id, name, person)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[]) AS given (organization_id, name, person)
ON CONFLICT (organization_id, name) DO NOTHING
"""


class Linked(msgspec.Struct, frozen=True, gc=False):
    """A new link, with keys for names."""

    organization_id: UUID
    one: str
    other: str
    #: The names that occur in no earlier link, and in no other new one.
    strange: tuple[str, ...]


async def link(conn: Connection, links: Collection[Link]) -> list[Linked]:
    """Record that names belong to one person; returns the new links. Runs in the caller's transaction, which from then
    on holds the locks of organizations that got a new link."""
    wanted = sorted(
        {
            (organization_id, *sorted((phones.person(one), phones.person(other))))
            for organization_id, one, other in links
            if phones.person(one) != phones.person(other)
        },
        key=lambda link: (str(link[0]), *link[1:]),
    )
    if not wanted:
        return []
    rows = await conn.fetch(UNKNOWN, *(list(column) for column in zip(*wanted, strict=True)))
    new = [wanted[row["n"] - 1] for row in rows]
    new.sort(key=wanted.index)
    if not new:
        return []
    await conn.execute(TURN, list(dict.fromkeys(str(organization_id) for organization_id, *_ in new)))
    names = {(organization_id, name) for organization_id, *pair in new for name in pair}
    rows = await conn.fetch(GROUPS, [organization_id for organization_id, _ in names], [name for _, name in names])
    known = {(row["organization_id"], row["name"]): row["person"] for row in rows}
    groups = _Groups(known)
    for organization_id, one, other in new:
        groups.join(organization_id, one, other)
    if joined := groups.joined():
        await conn.execute(JOIN, *(list(column) for column in zip(*joined, strict=True)))
    if named := groups.named():
        await conn.execute(NAME, *(list(column) for column in zip(*named, strict=True)))
    often = Counter((organization_id, name) for organization_id, *pair in new for name in pair)
    strange = {place for place, times in often.items() if times == 1 and place not in known}
    return [
        Linked(organization_id, one, other, tuple(name for name in (one, other) if (organization_id, name) in strange))
        for organization_id, one, other in new
    ]


class _Groups:
    """Groups names by person, from stored links and the new ones."""

    def __init__(self, known: dict[tuple[UUID, str], UUID]) -> None:
        self._person = dict(known)
        self._known = known
        #: (organization, person) → the person that it was merged into.
        self._same: dict[tuple[UUID, UUID], UUID] = {}

    def join(self, organization_id: UUID, one: str, other: str) -> None:
        """Record that two names belong to one person. When persons merge, the first one is kept."""
        places = [(organization_id, one), (organization_id, other)]
        persons = {self._now(organization_id, self._person[place]) for place in places if place in self._person}
        person = min(persons, default=None) or uuid7()
        for old in persons - {person}:
            self._same[organization_id, old] = person
        for place in places:
            self._person[place] = person

    def joined(self) -> list[tuple[UUID, UUID, UUID]]:
        """(organization, person, the person it was merged into)."""
        found = [(*key, self._now(*key)) for key in self._same]
        return sorted(found, key=lambda one: (one[0].int, one[1].int))

    def named(self) -> list[tuple[UUID, str, UUID]]:
        """(organization, name, person) of new names."""
        new = sorted(self._person.keys() - self._known.keys(), key=lambda place: (place[0].int, place[1]))
        return [(*place, self._now(place[0], self._person[place])) for place in new]

    def _now(self, organization_id: UUID, person: UUID) -> UUID:
        while (other := self._same.get((organization_id, person))) is not None:
            person = other
        return person


class Left(msgspec.Struct, frozen=True):
    """A number that its person moved away from."""

    left_at: datetime
    #: E.164.
    moved_to: str
    #: Somebody else has used it since.
    is_taken: bool


LEFT = """
SELECT item.n, known.left_at, known.moved_to, known.taken_at IS NOT NULL AS is_taken
  FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS item (organization_id, name, n) CROSS JOIN LATERAL (
       SELECT left_at, moved_to, taken_at FROM person_names
        WHERE organization_id = item.organization_id AND name = item.name LIMIT 1) known
 WHERE known.left_at IS NOT NULL
"""


async def left(conn: Connection, names: Collection[tuple[UUID, str]]) -> dict[tuple[UUID, str], Left]:
    """Those of the names, as (organization, address), that their person has left."""
    asked = list(names)
    rows = await conn.fetch(LEFT, [one for one, _ in asked], [phones.person(address) for _, address in asked])
    return {asked[row["n"] - 1]: Left(row["left_at"], row["moved_to"], row["is_taken"]) for row in rows}


LEAVE = """
UPDATE person_names SET left_at = $3, moved_to = $4, taken_at = NULL WHERE organization_id = $1 AND name = $2
"""
RETURN = """
UPDATE person_names SET left_at = NULL, moved_to = NULL, taken_at = NULL
 WHERE organization_id = $1 AND name = $2 AND left_at < $3
"""


async def leave(conn: Connection, organization_id: UUID, number: str, *, to: str, at: datetime) -> None:
    """Record that a person has moved from `number` to another one, which is linked to it already."""
    await conn.execute(LEAVE, organization_id, phones.person(number), at, to)
    await conn.execute(RETURN, organization_id, phones.person(to), at)


async def come_back(conn: Connection, organization_id: UUID, number: str, *, at: datetime) -> None:
    """Record that a person uses a number again that they had left."""
    await conn.execute(RETURN, organization_id, phones.person(number), at)


TAKE = "UPDATE person_names SET person = $3, taken_at = $4 WHERE organization_id = $1 AND name = $2"


async def take(conn: Connection, organization_id: UUID, number: str, *, at: datetime) -> None:
    """Record that somebody else uses a number that its person had left: it is another person's now. The caller
    hands on opt-outs and conversations, in the same transaction."""
    await conn.execute(TURN, [str(organization_id)])
    await conn.execute(TAKE, organization_id, phones.person(number), uuid7(), at)


NAMES = "SELECT name FROM names_of_person($1, $2)"


async def names(conn: Connection, organization_id: UUID, address: str) -> list[str]:
    """All names of the person with this address, as keys; its own comes first."""
    return [row["name"] for row in await conn.fetch(NAMES, organization_id, address)]


class Owned(msgspec.Struct, frozen=True):
    """A name of a person, as a key, and from when until when it was theirs; None: always, or still."""

    name: str
    since: datetime | None = None
    until: datetime | None = None


TAKEN = """
SELECT item.name, known.taken_at FROM unnest($2::text[]) WITH ORDINALITY AS item (name, n)
  LEFT JOIN person_names known ON known.organization_id = $1 AND known.name = item.name ORDER BY item.n
"""
# There is no index by the number moved to: for rare use.
FORMER = """
SELECT known.name, known.taken_at FROM unnest($2::text[], $3::timestamptz[], $4::timestamptz[])
       AS item (name, since, until)
  JOIN person_names known ON known.organization_id = $1 AND person_of(known.moved_to) = item.name
 WHERE known.taken_at IS NOT NULL AND (item.since IS NULL OR known.left_at > item.since)
   AND (item.until IS NULL OR known.left_at <= item.until)
"""


async def owned(conn: Connection, organization_id: UUID, address: str) -> list[Owned]:
    """All names of the person with this address, and those that others have taken since they left them. A number
    remembers the last change of its owner."""
    rows = await conn.fetch(TAKEN, organization_id, await names(conn, organization_id, address))
    found = {row["name"]: Owned(row["name"], since=row["taken_at"]) for row in rows}
    fresh = list(found.values())
    while fresh:
        asked = [one.name for one in fresh], [one.since for one in fresh], [one.until for one in fresh]
        rows = await conn.fetch(FORMER, organization_id, *asked)
        fresh = [Owned(row["name"], until=row["taken_at"]) for row in rows if row["name"] not in found]
        found |= {one.name: one for one in fresh}
    return list(found.values())
