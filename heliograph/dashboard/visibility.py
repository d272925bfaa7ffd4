"""Whose numbers and texts a reader sees in full, and the names of the people, keys and campaigns behind messages.

A role sees all of them, only those of messages that its holder sent, or none (`people.roles`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal
from uuid import UUID

from heliograph.accounts.api_keys import issued
from heliograph.base import naming
from heliograph.base.database.pool import Connection
from heliograph.campaigns import record
from heliograph.pages.requests import Request
from heliograph.people import memberships
from heliograph.people.roles import CONTENT, CONVERSE, TEAM

#: Members offered by a filter. Any other one is found by name or e-mail address.
PEOPLE_OFFERED = 200
#: Revoked and expired keys offered by a filter.
ENDED_OFFERED = 20


def is_whole(request: Request, person_id: UUID | None) -> bool:
    """Whether the reader sees the number and text of a message sent by this person (None: sent by no person)."""
    seen = whose(request)
    return seen == "all" or (seen == "own" and person_id == request.person.user_id)


def whose(request: Request) -> Literal["all", "own", "none"]:
    """Whose messages the reader sees in full."""
    if request.may(permission=CONTENT):
        return "all"
    return "own" if request.may(permission=CONVERSE) else "none"


async def people(conn: Connection, request: Request) -> list[tuple[UUID, str]]:
    """The people offered to filter messages by: the team's first PEOPLE_OFFERED, for readers who may see it, otherwise
    only the reader. Those who share a name are called by their e-mail address."""
    own = (request.person.user_id, request.person.name)
    if not request.may(permission=TEAM):
        return [own] if request.may("sms:send") or request.may("whatsapp:send") else []
    listed = await memberships.list_page(conn, request.actor, limit=PEOPLE_OFFERED)
    named = Counter(one.name.casefold() for one in listed)
    return [(one.user_id, one.name if named[one.name.casefold()] == 1 else one.email) for one in listed]


async def people_called(conn: Connection, request: Request, text: str) -> list[UUID]:
    """The members with this name or e-mail address, for readers who may see the team: two of them are enough."""
    if not request.may(permission=TEAM):
        return []
    text = naming.sought(text)
    listed = await memberships.list_page(conn, request.actor, search=text, limit=PEOPLE_OFFERED)
    called = text.casefold()
    return [one.user_id for one in listed if called in (one.name.casefold(), naming.sought(one.email).casefold())][:2]


async def called(conn: Connection, request: Request, person_id: UUID) -> str:
    """What `people_called` finds a member by: their name, or their e-mail address if they share it; "": they are none,
    or the reader may not see the team."""
    if not request.may(permission=TEAM) or not await memberships.names(conn, request.actor, ids=[person_id]):
        return ""
    one = await memberships.get(conn, request.actor, user_id=person_id)
    return one.name if await people_called(conn, request, one.name) == [person_id] else one.email


async def keys(conn: Connection, request: Request, chosen: UUID | None) -> list[tuple[UUID, str]]:
    """The keys that a list can be filtered by, for readers who may see keys: the current ones, the last ENDED_OFFERED
    that ended, and the one that is `chosen`."""
    if not request.may("api_keys:read"):
        return []
    offered = {one.id: one.name for one in await issued.standing(conn, request.actor)}
    offered |= {one.id: one.name for one in await issued.ended(conn, request.actor, limit=ENDED_OFFERED)}
    return list((offered | await key_names(conn, request, [chosen])).items())


async def name(conn: Connection, request: Request, person_id: UUID | None) -> str | None:
    """A person's name; None if the reader may not know it, or if the person has left."""
    if person_id is None:
        return None
    return (await names(conn, request, [person_id])).get(person_id)


async def names(conn: Connection, request: Request, person_ids: Iterable[UUID | None]) -> dict[UUID, str]:
    """The names of those among these people whom the reader may know and who have not left, and the reader's own."""
    known = {request.person.user_id: request.person.name}
    if not request.may(permission=TEAM):
        return known
    return await memberships.names(conn, request.actor, ids={one for one in person_ids if one is not None}) | known


async def key_names(conn: Connection, request: Request, ids: Iterable[UUID | None]) -> dict[UUID, str]:
    """The names of those among these keys that the organization has, or had, for readers who may see keys."""
    if not request.may("api_keys:read"):
        return {}
    return await issued.names(conn, request.actor, ids={one for one in ids if one is not None})


async def campaigns(
    conn: Connection, request: Request, ids: Iterable[UUID | None], *, mode: Literal["live"] | None = None
) -> dict[UUID, str]:
    """The names of those campaigns that exist, for readers who may see them. `mode`: for a page that is limited to one
    mode."""
    asked = list({id for id in ids if id is not None})
    if not asked or not request.may("campaigns:read", mode=mode):
        return {}
    return await record.names(conn, request.actor if mode is None else request.acting(mode), ids=asked)
