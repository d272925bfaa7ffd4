"""Changes to everything that matches a list's filters: an export that changes what it finds, and whose file lists the
result for each.

The rule nobody may break: a change, its lines in the file and the progress are one commit. At each step it is checked
again that the person who requested it is still allowed to.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.contacts import marked, search
from heliograph.overview import messages
from heliograph.overview.exports.kinds import Cancel, Change, Page, Tag, place_of, sheet
from heliograph.people import memberships, roles
from heliograph.people.roles import RoleRequired
from heliograph.sms import messages as sms

#: Rows changed per commit: it locks balances and numbers, and others wait for them.
STEP = 200
#: The scope that a role needs for each kind of change.
SCOPES: dict[type[Change], str] = {Cancel: "sms:send", Tag: "contacts:write"}
COLUMNS = ("id", "result")
#: Statuses of messages that may wait. One that was tried is shown as under way also while it waits for its next try.
WAITING = frozenset({"accepted", sms.SENDING})


async def step(conn: Connection, actor: Actor, wanted: Change, *, after: str | None, is_first: bool) -> Page:
    """Change the next rows, in the caller's transaction. Raises RoleRequired if the requester is no longer allowed
    to."""
    scope = SCOPES[type(wanted)]
    assert actor.user_id is not None
    role = roles.ROLES.get(await memberships.role_of(conn, actor, user_id=actor.user_id) or "")
    if role is None or scope not in role.scopes(actor.mode):
        raise RoleRequired(required=roles.holders(scope=scope, mode=actor.mode))
    found: list[tuple[UUID, str]]
    match wanted:
        case Cancel():
            found, further = await _cancel(conn, actor, wanted, place_of(after))
        case Tag():
            found, further = await _tag(conn, actor, wanted, place_of(after))
    text = sheet(wanted, COLUMNS, [(str(id), result) for id, result in found], is_first)
    return Page(text, len(found), None if further is None else str(further))


def waiting(filters: messages.Filters) -> messages.Filters:
    """The same filters, of messages that may still wait."""
    statuses = WAITING.intersection(filters.statuses) if filters.statuses else WAITING
    return msgspec.structs.replace(filters, channel="sms", statuses=sorted(statuses))


async def _cancel(
    conn: Connection, actor: Actor, wanted: Cancel, after: UUID | None
) -> tuple[list[tuple[UUID, str]], UUID | None]:
    looked = await messages.list_page(conn, actor, filters=waiting(wanted.filters), after=after, limit=STEP)
    ids = [one.id for one in looked.messages[:STEP]]
    done = await sms.cancel_many(conn, actor, ids=ids)
    further = ids[-1] if len(looked.messages) > STEP else looked.seen
    return [(id, "canceled" if done.get(id) else "sending") for id in ids], further


async def _tag(
    conn: Connection, actor: Actor, wanted: Tag, after: UUID | None
) -> tuple[list[tuple[UUID, str]], UUID | None]:
    looked = await search.search(conn, actor, filters=wanted.filters, after=after, limit=STEP)
    ids = [one.id for one in looked.contacts[:STEP]]
    further = ids[-1] if len(looked.contacts) > STEP else looked.seen
    if not ids:
        return [], further
    change = await (marked.remove_tag if wanted.is_removed else marked.add_tag)(conn, actor, ids=ids, tag=wanted.value)
    changed = set(change.ids)
    return [(id, "changed" if id in changed else "unchanged") for id in ids], further
