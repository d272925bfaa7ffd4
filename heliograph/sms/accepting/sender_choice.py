"""The sender ID of a send: by id, by name, or its organization's default.

The rule nobody may break: a negative answer is never cached, so that an approval takes effect with its commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.errors import Invalid, Refusal
from heliograph.base.loading_cache import LoadingCache
from heliograph.sms.accepting.sender_ids import COLUMNS, SenderId, SenderIdNotApproved


class Named(msgspec.Struct, frozen=True):
    """An organization's sender IDs by a given id, by a given name, and its default if neither was given."""

    by_id: SenderId | None = None
    by_name: SenderId | None = None
    default: SenderId | None = None


#: A request: organization, id, name in lower case.
Asked = tuple[UUID, UUID | None, str | None]

# Each is a look-up of one row: an organization may have any number of sender IDs.
LOAD = f"""
SELECT asked.n, found.* FROM unnest($1::uuid[], $2::uuid[], $3::text[]) WITH ORDINALITY
       AS asked (organization_id, id, name, n)
 CROSS JOIN LATERAL (
       (SELECT 'by_id' AS place, {COLUMNS} FROM sender_ids
         WHERE organization_id = asked.organization_id AND sender_ids.id = asked.id LIMIT 1)
       UNION ALL
       (SELECT 'by_name', {COLUMNS} FROM sender_ids
         WHERE organization_id = asked.organization_id AND lower(value) = asked.name LIMIT 1)
       UNION ALL
       (SELECT 'default', {COLUMNS} FROM sender_ids
         WHERE organization_id = asked.organization_id AND is_default AND asked.id IS NULL AND asked.name IS NULL
         LIMIT 1)) found
"""


#: The names of the fields for a sender's id and name in a request.
Fields = tuple[str, str]
CAMEL: Fields = ("senderId", "senderName")
SNAKE: Fields = ("sender_id", "sender_name")


class SenderBook:
    """A cache of approved sender IDs used by recent sends, at most half a second old."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._fresh: LoadingCache[Asked, Named] = LoadingCache(self._load, indivisible=is_down)

    async def resolve(self, actor: Actor, *, sender_id: UUID | None, sender_name: str | None) -> SenderId:
        """The approved sender ID with this id or name; the organization's default if neither is given.

        Raises Invalid for an unknown id or for an id and a name that disagree, and SenderIdNotApproved. A negative
        answer is always based on the database's current state and never cached, so that an approval takes effect with
        its commit.
        """
        asked = _asked(actor, sender_id, sender_name)
        fresh, found = self._fresh.peek(asked)
        if fresh:
            try:
                return _choose(found or Named(), asked)
            except Refusal:
                pass
        found = await self._fresh.get(asked, bypass_cache=True)
        try:
            return _choose(found or Named(), asked)
        except Refusal:
            self._fresh.forget(asked)
            raise

    async def _load(self, asked: Sequence[Asked]) -> dict[Asked, Named]:
        return await _look_up(self._pool, asked)


async def resolve(
    conn: Connection, actor: Actor, *, sender_id: UUID | None, sender_name: str | None, fields: Fields = CAMEL
) -> SenderId:
    """What `SenderBook.resolve` would choose or refuse, according to the database's current state.

    `fields`: the names of the two fields in the request, for refusals.
    """
    asked = _asked(actor, sender_id, sender_name)
    return _choose((await _look_up(conn, [asked])).get(asked, Named()), asked, fields)


def by_default(sender_id: UUID | None, sender_name: str | None) -> bool | None:
    """The value in a message's row: true if neither was given, otherwise NULL, which takes no space."""
    return True if sender_id is None and sender_name is None else None


async def named(conn: Connection, actor: Actor, *, names: Sequence[str]) -> SenderId | None:
    """The organization's sender ID with the first of these values that it has, in any status, regardless of case.
    `names`: one at least."""
    asked = [_asked(actor, None, name) for name in names]
    found = await _look_up(conn, asked)
    return next((one for each in asked if (one := found.get(each, Named()).by_name) is not None), None)


async def identified(conn: Connection, actor: Actor, *, id: UUID) -> SenderId | None:
    """The organization's sender ID with an id, in any status."""
    asked = _asked(actor, id, None)
    return (await _look_up(conn, [asked])).get(asked, Named()).by_id


def _asked(actor: Actor, sender_id: UUID | None, sender_name: str | None) -> Asked:
    return actor.organization_id, sender_id, None if sender_name is None else sender_name.lower()


async def _look_up(conn: Connection | Pool, asked: Sequence[Asked]) -> dict[Asked, Named]:
    found: dict[Asked, dict[str, SenderId]] = {}
    columns = [list(column) for column in zip(*asked, strict=True)]
    for n, place, *values in await conn.fetch(LOAD, *columns):
        found.setdefault(asked[n - 1], {})[place] = SenderId(*values)
    return {one: Named(**places) for one, places in found.items()}


def _choose(found: Named, asked: Asked, fields: Fields = CAMEL) -> SenderId:
    _, sender_id, sender_name = asked
    by_id, by_name = fields
    if sender_id is None and sender_name is None:
        if found.default is None:
            raise SenderIdNotApproved(
                f"This organization has no default sender ID; give one in `{by_id}` or `{by_name}`.",
                senderId=None,
                status=None,
                reason="no_default",
            )
        return found.default
    chosen = None
    if sender_id is not None:
        chosen = found.by_id
        if chosen is None:
            raise Invalid((by_id, "unknown", f"`{by_id}` is not a sender ID of this organization"))
    if sender_name is not None:
        named = found.by_name
        if chosen is not None and (named is None or named.id != chosen.id):
            raise Invalid((by_name, "disagrees", f"`{by_id}` and `{by_name}` refer to different sender IDs"))
        if named is None:
            raise SenderIdNotApproved(
                "No sender ID of this organization has this name.", senderId=None, status=None, reason="unknown"
            )
        chosen = named
    assert chosen is not None
    if chosen.status != "approved":
        raise SenderIdNotApproved(senderId=str(chosen.id), status=chosen.status, reason=chosen.rejection_reason)
    return chosen
