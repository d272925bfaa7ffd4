"""People: which names belong to one person.

A person has as many names as there are ways to write to them: spellings of a number, which `phones.person` normalizes
to one; and numbers and user ids that, according to Meta, belong to the same person. Those are linked here, separately
in each organization, since user ids are scoped to one. Consent, windows and conversations are looked up by all names of
a person (people.sql).

A number that its person has moved away from (`leave`) stays linked until somebody else writes from it or changes to it:
then it is another person's (`take`). Its former owners stay known, with their times (former_names): a message is stored
under a number, and belongs to the person who had it then (`owned`).

The rule nobody may break: nothing else removes a link, and code that removes one hands on the opt-outs
(`consent.handing_on`). A reassigned number keeps its old owner's opt-out, so a message may be withheld needlessly; a
lost link would send one to somebody who said STOP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7

#: An organization, and two names of one person: E.164, or a user id.
Link = tuple[UUID, str, str]

# Names that are already linked, as most are, cost one look-up. A number that its person has left gets no new links:
# its owner is unknown until somebody writes from it.
UNKNOWN = """
SELECT item.n, one.is_left IS TRUE OR other.is_left IS TRUE AS is_left
  FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS item (organization_id, one, other, n)
  LEFT JOIN LATERAL (SELECT person, left_at IS NOT NULL AS is_left FROM person_names
                      WHERE organization_id = item.organization_id AND name = item.one LIMIT 1) one ON true
  LEFT JOIN LATERAL (SELECT person, left_at IS NOT NULL AS is_left FROM person_names
                      WHERE organization_id = item.organization_id AND name = item.other LIMIT 1) other ON true
 WHERE (one.person = other.person) IS NOT TRUE
"""
# Two transactions that link people of one organization take turns, so that each sees all existing groups.
TURN = "SELECT pg_advisory_xact_lock(hashtextextended('people ' || id, 0)) FROM unnest($1::text[]) AS turn (id)"
GROUPS = """
SELECT known.organization_id, known.name, known.person
  FROM unnest($1::uuid[], $2::text[]) AS item (organization_id, name) CROSS JOIN LATERAL (
       SELECT * FROM person_names WHERE organization_id = item.organization_id AND name = item.name LIMIT 1) known
"""
JOIN = """
WITH joined AS (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS item (organization_id, old, person)
), former AS (
    UPDATE former_names SET person = joined.person FROM joined
     WHERE former_names.organization_id = joined.organization_id AND former_names.person = joined.old
)
UPDATE person_names SET person = joined.person FROM joined
 WHERE person_names.organization_id = joined.organization_id AND person_names.person = joined.old
"""
NAME = """
INSERT INTO person_names (organization_id, name, person)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[]) AS given (organization_id, name, person)
ON CONFLICT (organization_id, name) DO NOTHING
"""


# Most new links are of two names that nobody has yet, as of somebody who is written to for the first time: it takes the
# turns as well (people.sql).
LINK_STRANGERS = "SELECT link_strangers($1, $2, $3, $4, $5)"


class NewLink(msgspec.Struct, frozen=True, gc=False):
    """A new link, with keys for names."""

    organization_id: UUID
    one: str
    other: str
    #: The names that occur in no earlier link, and in no other new one.
    strange: tuple[str, ...]


class Linked(msgspec.Struct, frozen=True, gc=False):
    """What became of links that were to be recorded."""

    new: list[NewLink]
    #: False: some were not recorded, because a number's person has left it.
    is_complete: bool = True


async def link(conn: Connection, links: Collection[Link]) -> Linked:
    """Record that names belong to one person. Runs in the caller's transaction, which from then on holds the locks of
    organizations that got a new link."""
    wanted = sorted(
        {
            (organization_id, min(pair), max(pair))
            for organization_id, one, other in links
            if len(pair := {phones.person(one), phones.person(other)}) == 2
        },
        key=lambda link: (link[0].int, *link[1:]),
    )
    if not wanted:
        return Linked([])
    rows = await conn.fetch(UNKNOWN, *_columns(wanted))
    new = [wanted[n - 1] for n in sorted(row["n"] for row in rows if not row["is_left"])]
    is_complete = len(new) == len(rows)
    if not new:
        return Linked([], is_complete)
    often = Counter((organization_id, name) for organization_id, *pair in new for name in pair)
    rest = await _link_strangers(conn, new, often)
    known = await _link_groups(conn, rest) if rest else {}
    strange = {place for place, times in often.items() if times == 1 and place not in known}
    return Linked(
        [
            NewLink(
                organization_id, one, other, tuple(name for name in (one, other) if (organization_id, name) in strange)
            )
            for organization_id, one, other in new
        ],
        is_complete,
    )


async def _link_strangers(conn: Connection, new: Sequence[Link], often: Counter[tuple[UUID, str]]) -> Sequence[Link]:
    """Take the turns of these links' organizations, and link those of whose names nothing else is known; returns the
    others."""
    turns = list(dict.fromkeys(str(organization_id) for organization_id, *_ in new))
    apart = [link for link in new if often[link[0], link[1]] == often[link[0], link[2]] == 1]
    if not apart:
        await conn.execute(TURN, turns)
        return new
    linked = await conn.fetchval(LINK_STRANGERS, turns, *_columns(apart), [uuid7() for _ in apart])
    if len(linked) == len(new):
        return []
    done = {apart[n - 1] for n in linked}
    return [link for link in new if link not in done]


async def _link_groups(conn: Connection, new: Sequence[Link]) -> dict[tuple[UUID, str], UUID]:
    """Link names that may belong to known persons, in the turns of their organizations; returns the persons that the
    names belonged to before."""
    names = {(organization_id, name) for organization_id, *pair in new for name in pair}
    rows = await conn.fetch(GROUPS, [organization_id for organization_id, _ in names], [name for _, name in names])
    known = {(row["organization_id"], row["name"]): row["person"] for row in rows}
    groups = _Groups(known)
    for organization_id, one, other in new:
        groups.join(organization_id, one, other)
    if joined := groups.joined():
        await conn.execute(JOIN, *_columns(joined))
    if named := groups.named():
        await conn.execute(NAME, *_columns(named))
    return known


def _columns(rows: Sequence[tuple[object, ...]]) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)]


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
        now = person
        while (other := self._same.get((organization_id, now))) is not None:
            now = other
        # The way there is shortened: a long chain of merges is followed once, not for each person in it.
        while person != now:
            place = organization_id, person
            person, self._same[place] = self._same[place], now
        return now


class DepartedNumber(msgspec.Struct, frozen=True):
    """A number that its person moved away from."""

    left_at: datetime
    #: A number in E.164, or their new user id if the number is not known.
    moved_to: str
    #: Somebody else has used it since.
    is_taken: bool


LEFT = """
SELECT item.n, known.left_at, known.moved_to, known.is_taken
  FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS item (organization_id, name, n) CROSS JOIN LATERAL (
       (SELECT left_at, moved_to, true AS is_taken FROM former_names
         WHERE organization_id = item.organization_id AND name = item.name ORDER BY left_at DESC LIMIT 100)
        UNION ALL
       (SELECT left_at, moved_to, false FROM person_names
         WHERE organization_id = item.organization_id AND name = item.name AND left_at IS NOT NULL LIMIT 1)) known
 ORDER BY item.n, known.left_at
"""


async def left(conn: Connection, names: Collection[tuple[UUID, str]]) -> dict[tuple[UUID, str], list[DepartedNumber]]:
    """Departures from those of the names, as (organization, address), that people have left, in order. Only after the
    last one may the number not have been taken."""
    asked = list(names)
    rows = await conn.fetch(LEFT, [one for one, _ in asked], [phones.person(address) for _, address in asked])
    found: dict[tuple[UUID, str], list[DepartedNumber]] = {}
    for row in rows:
        found.setdefault(asked[row["n"] - 1], []).append(
            DepartedNumber(row["left_at"], row["moved_to"], row["is_taken"])
        )
    return found


async def persons(conn: Connection, names: Collection[tuple[UUID, str]]) -> dict[tuple[UUID, str], UUID]:
    """The persons of those of the names, as (organization, key), that are linked to others."""
    asked = list(names)
    rows = await conn.fetch(GROUPS, [one for one, _ in asked], [name for _, name in asked])
    return {(row["organization_id"], row["name"]): row["person"] for row in rows}


class Departure(msgspec.Struct, frozen=True):
    """A person moved from one number to another one, both in E.164, which are linked already; or to one that is not
    known, under a new user id."""

    organization_id: UUID
    number: str
    moved_to: str
    at: datetime


LEAVE = """
UPDATE person_names SET left_at = item.at, moved_to = item.moved_to
  FROM unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::text[]) AS item (organization_id, name, at, moved_to)
 WHERE person_names.organization_id = item.organization_id AND person_names.name = item.name
"""
RETURN = """
UPDATE person_names SET left_at = NULL, moved_to = NULL
  FROM unnest($1::uuid[], $2::text[], $3::timestamptz[]) AS item (organization_id, name, at)
 WHERE person_names.organization_id = item.organization_id AND person_names.name = item.name AND left_at < item.at
"""


async def leave(conn: Connection, departures: Collection[Departure]) -> None:
    """Record departures, of each number at most one."""
    if not departures:
        return
    ordered = sorted(departures, key=lambda one: (one.organization_id.int, phones.person(one.number)))
    organizations, times = [one.organization_id for one in ordered], [one.at for one in ordered]
    left = [phones.person(one.number) for one in ordered]
    await conn.execute(LEAVE, organizations, left, times, [one.moved_to for one in ordered])
    await conn.execute(RETURN, organizations, [phones.person(one.moved_to) for one in ordered], times)


async def come_back(conn: Connection, organization_id: UUID, number: str, *, at: datetime) -> None:
    """Record that a person uses a number again that they had left."""
    await conn.execute(RETURN, [organization_id], [phones.person(number)], [at])


# Two people do not leave a number in the same second: if Meta reports that nevertheless, the last report counts.
TAKE = """
WITH former AS (
    INSERT INTO former_names (organization_id, name, person, left_at, moved_to, taken_at)
    SELECT organization_id, name, person, left_at, moved_to, $4 FROM person_names
     WHERE organization_id = $1 AND name = $2 AND left_at IS NOT NULL
    ON CONFLICT (organization_id, name, left_at)
    DO UPDATE SET person = excluded.person, moved_to = excluded.moved_to, taken_at = excluded.taken_at
)
UPDATE person_names SET person = $3, left_at = NULL, moved_to = NULL WHERE organization_id = $1 AND name = $2
"""


async def take(conn: Connection, organization_id: UUID, number: str, *, at: datetime) -> None:
    """Record that somebody else uses a number that its person had left: it is another person's now. The caller hands
    on opt-outs and conversations, in the same transaction."""
    await conn.execute(TURN, [str(organization_id)])
    await conn.execute(TAKE, organization_id, phones.person(number), uuid7(), at)


HAD = """
WITH known AS (
    INSERT INTO person_names (organization_id, name, person) VALUES ($1, $3, $4)
    ON CONFLICT (organization_id, name) DO UPDATE SET person = person_names.person
    RETURNING person
)
INSERT INTO former_names (organization_id, name, person, left_at, moved_to, taken_at)
SELECT $1, $2, known.person, $5, $6, $5 FROM known
ON CONFLICT (organization_id, name, left_at) DO NOTHING
"""


async def had(conn: Connection, organization_id: UUID, number: str, *, until: datetime, moved_to: str) -> None:
    """Record that the owner of `moved_to` had `number` until they moved, although it now belongs to somebody else and
    was never linked to theirs. Runs in the caller's transaction."""
    await conn.execute(TURN, [str(organization_id)])
    keys = phones.person(number), phones.person(moved_to)
    await conn.execute(HAD, organization_id, *keys, uuid7(), until, moved_to)


NAMES = "SELECT name FROM names_of_person($1, $2)"


async def names(conn: Connection, organization_id: UUID, address: str) -> list[str]:
    """All names of the person with this address, as keys; its own comes first."""
    return [row["name"] for row in await conn.fetch(NAMES, organization_id, address)]


class OwnedName(msgspec.Struct, frozen=True):
    """A name of a person, as a key, and the period in which it was theirs; None: always, or still."""

    name: str
    since: datetime | None = None
    until: datetime | None = None


OWNED = """
SELECT item.name, (SELECT max(taken_at) FROM former_names before
                    WHERE before.organization_id = $1 AND before.name = item.name) AS since, NULL AS until
  FROM unnest($2::text[]) AS item (name)
 UNION ALL
SELECT mine.name, (SELECT max(taken_at) FROM former_names before
                    WHERE before.organization_id = $1 AND before.name = mine.name AND before.left_at < mine.left_at),
       mine.taken_at
  FROM person_names known JOIN former_names mine ON mine.organization_id = $1 AND mine.person = known.person
 WHERE known.organization_id = $1 AND known.name = $3
"""


async def owned(conn: Connection, organization_id: UUID, address: str) -> list[OwnedName]:
    """All names of the person with this address, and the numbers that they had before somebody else did. A number that
    they had twice is listed twice."""
    mine = await names(conn, organization_id, address)
    rows = await conn.fetch(OWNED, organization_id, mine, phones.person(address))
    return [OwnedName(row["name"], row["since"], row["until"]) for row in rows]


LINKED = """
SELECT (SELECT count(*) FROM person_names WHERE organization_id = $1 AND name = ANY ($2))::int
     + (SELECT count(*) FROM former_names
         WHERE organization_id = $1
           AND person IN (SELECT person FROM person_names WHERE organization_id = $1 AND name = ANY ($2)))::int
"""


async def linked(conn: Connection, organization_id: UUID, names: Collection[str]) -> int:
    """How many links these names of one person have, including numbers that they had before somebody else did. An
    erasure keeps them: an opt-out under one name holds for all, and messages of a number that changed hands are
    attributed by them, even when somebody else is erased."""
    found: int = await conn.fetchval(LINKED, organization_id, list(names))
    return found
