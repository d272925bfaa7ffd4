"""People: which names belong to one person.

A person has as many names as there are ways to write to them: spellings of a number, which `phones.person` makes one;
and numbers and user ids that Meta says are the same person's, which are linked here, in one organization each, since
user ids are scoped to it. Consent, windows and conversations are looked up by all names of a person (people.sql).

The rule nobody may break: links only grow. A number that is reassigned keeps its old owner's opt-out, which costs a
message; a lost link would send one to somebody who said STOP.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7

#: An organization, and two names of one person: E.164, or a user id.
Link = tuple[UUID, str, str]

# Those that are linked already cost a look-up, and most are.
UNKNOWN = """
SELECT item.n FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS item (organization_id, one, other, n)
  LEFT JOIN LATERAL (SELECT person FROM person_names
                      WHERE organization_id = item.organization_id AND name = item.one LIMIT 1) one ON true
  LEFT JOIN LATERAL (SELECT person FROM person_names
                      WHERE organization_id = item.organization_id AND name = item.other LIMIT 1) other ON true
 WHERE (one.person = other.person) IS NOT TRUE
"""
# Two transactions that link people of one organization take turns, so that each sees all existing groups.
TURN = "SELECT pg_advisory_xact_lock(hashtextextended('people ' || id, 0)) FROM unnest($1::text[]) AS turn (id)"
GROUPS = """
SELECT name, person FROM person_names WHERE organization_id = $1 AND name = ANY ($2)
"""
JOIN = "UPDATE person_names SET person = $3 WHERE organization_id = $1 AND person = ANY ($2)"
NAME = """
INSERT INTO person_names (organization_id, name, person) SELECT $1, name, $3 FROM unnest($2::text[]) AS given (name)
ON CONFLICT (organization_id, name) DO NOTHING
"""


async def link(conn: Connection, links: Collection[Link]) -> list[Link]:
    """Record that names belong to one person; returns the new links, with keys for names. Runs in the caller's
    transaction, which holds the organizations' locks from then on if there was a new one."""
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
    for organization_id, one, other in new:
        known = {row["name"]: row["person"] for row in await conn.fetch(GROUPS, organization_id, [one, other])}
        person = min(known.values(), default=uuid7())
        apart = [id for id in set(known.values()) if id != person]
        if apart:
            await conn.execute(JOIN, organization_id, apart, person)
        await conn.execute(NAME, organization_id, [one, other], person)
    return new


NAMES = "SELECT name FROM names_of_person($1, $2)"


async def names(conn: Connection, organization_id: UUID, address: str) -> list[str]:
    """All names of the person with this one, as keys; that one's first."""
    return [row["name"] for row in await conn.fetch(NAMES, organization_id, address)]
