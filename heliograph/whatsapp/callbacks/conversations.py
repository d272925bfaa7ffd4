"""How callbacks change conversations: the conversation of a user's message, and the service window that it opens.

A user's message or call opens the 24-hour window in which a text may be sent; Meta's refusal closes it. Callbacks
arrive late and in any order, so a window depends on two times only: the newest message or call that opens one, and the
newest refusal. The rule nobody may break: late or repeated callbacks never shorten a window, and never reopen one that
Meta has closed since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.consent import people
from heliograph.consent.people import Link


class User(msgspec.Struct, frozen=True, gc=False):
    """Somebody who writes to a number. At least one of `digits` and `user_id` is set."""

    organization_id: UUID
    number_id: UUID
    #: As Meta writes them, without `+`.
    digits: str | None
    #: Business-scoped user id.
    user_id: str | None

    @property
    def recipient(self) -> str:
        """E.164 with +; the user id if the number is hidden."""
        return f"+{self.digits}" if self.digits else self.user_id or ""

    @property
    def links(self) -> list[Link]:
        """The links between the user's names, if there are several."""
        if self.digits and self.user_id:
            return [(self.organization_id, self.recipient, self.user_id)]
        return []


class UserActivity(msgspec.Struct, frozen=True, gc=False):
    """A user's message, or call, to be recorded in its conversation."""

    conversation_id: UUID
    user: User
    #: Not in the future.
    at: datetime
    opens: bool
    referred: bool
    #: Whether it is a call, not a message.
    is_call: bool = False


MAKE = "SELECT whatsapp_ensure_conversations($1, $2, $3, $4, $5)"


async def of_users(conn: Connection, users: Sequence[User]) -> list[UUID]:
    """The conversation of each, created if there is none; runs in the caller's transaction.

    A user known by one name gets the other as well, and if both had conversations, they are merged.
    """
    if not users:
        return []
    await link(conn, [one for user in users for one in user.links])
    rows = [(user.organization_id, user.number_id, user.recipient, uuid7()) for user in users]
    made: list[UUID] = await conn.fetchval(MAKE, clock.now(), *_columns(rows, 4))
    return made


# Links all of whose new names have a conversation. Of a new pair, a user id is looked up first, and seldom has one.
ALIASED = """
SELECT item.n FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY
       AS item (organization_id, last, other, n)
 WHERE EXISTS (SELECT FROM whatsapp_aliases WHERE organization_id = item.organization_id AND alias = item.last)
   AND (item.other IS NULL OR
        EXISTS (SELECT FROM whatsapp_aliases WHERE organization_id = item.organization_id AND alias = item.other))
"""
MERGE = "SELECT whatsapp_merge_conversations($1, $2)"


async def link(conn: Connection, links: Collection[Link]) -> bool:
    """Link names that, according to Meta, belong to one person, and merge their conversations. Runs in the caller's
    transaction, after it has locked wallets. Returns whether all of them are linked now (`people.Linked`)."""
    linked = await people.link(conn, links)
    # Most links name somebody for the first time, with nothing to merge.
    new = [one for one in linked.new if not one.strange]
    if fresh := [one for one in linked.new if one.strange]:
        names = [[name.removeprefix("+") for name in one.strange] for one in fresh]
        rows = await conn.fetch(
            ALIASED,
            [one.organization_id for one in fresh],
            [strange[-1] for strange in names],
            [strange[0] if len(strange) > 1 else None for strange in names],
        )
        new += [fresh[row["n"] - 1] for row in rows]
    if new:
        await conn.execute(MERGE, [one.organization_id for one in new], [one.one for one in new])
    return linked.is_complete


# A call opens a window, but does not count as a message. A conversation that began under a user id is found by that.
USED = """
SELECT item.n
  FROM unnest($1::uuid[], $2::text[], $3::timestamptz[]) WITH ORDINALITY AS item (organization_id, number, at, n)
 WHERE EXISTS (
       SELECT FROM names_of_person(item.organization_id, item.number) names
        CROSS JOIN LATERAL (SELECT conversation_id FROM whatsapp_aliases
                             WHERE organization_id = item.organization_id AND alias = ltrim(names.name, '+')
                            OFFSET 0) known
        CROSS JOIN LATERAL (SELECT last_inbound_at, opened_at FROM whatsapp_conversations
                             WHERE organization_id = item.organization_id AND id = known.conversation_id LIMIT 1) c
        WHERE greatest(c.last_inbound_at, c.opened_at) > item.at)
"""


async def used_since(conn: Connection, asked: Sequence[tuple[UUID, str, datetime]]) -> list[bool]:
    """Whether somebody wrote or called from each number, which is linked to no other name that they could have used
    since, after a point in time: (organization, number, time)."""
    if not asked:
        return []
    found = {row["n"] for row in await conn.fetch(USED, *_columns(asked, 3))}
    return [n in found for n in range(1, len(asked) + 1)]


HAND_ON = "SELECT whatsapp_hand_on_conversations($1, $2, $3)"


async def hand_on(conn: Connection, organization_id: UUID, number: str, *, to: str) -> None:
    """Leave the conversations found by `number` with the user who moved to `to`: the number is another person's now."""
    await conn.execute(HAND_ON, organization_id, number, to)


class Renamed(msgspec.Struct, frozen=True, gc=False):
    """A notice that the user of a conversation has another number, user id or both."""

    conversation_id: UUID
    #: The new names; no digits: the number is not told; no user id: unchanged.
    user: User
    at: datetime


# A notice may arrive after messages under names that are newer still, or with them. They do not replace a number, even
# one that the user has left.
RENAME = """
UPDATE whatsapp_conversations c
   SET recipient = CASE WHEN c.last_inbound_at <= v.at OR v.recipient LIKE '+%' THEN v.recipient
                        ELSE coalesce(c.user_id, v.recipient) END,
       user_id = CASE WHEN c.last_inbound_at <= v.at THEN coalesce(v.user_id, c.user_id) ELSE c.user_id END
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::timestamptz[])
       AS v (organization_id, id, recipient, user_id, at)
 WHERE c.organization_id = v.organization_id AND c.id = v.id
   AND (c.last_inbound_at <= v.at
        OR c.recipient LIKE '+%' AND person_of(c.recipient) <> person_of(v.recipient) AND NOT EXISTS (
           SELECT FROM (SELECT person FROM person_names
                         WHERE organization_id = c.organization_id AND name = person_of(c.recipient)
                           AND left_at IS NULL LIMIT 1) shown
            CROSS JOIN LATERAL (
                  SELECT FROM person_names WHERE organization_id = c.organization_id
                     AND name = person_of(v.recipient) AND person = shown.person LIMIT 1) theirs))
"""


async def rename(conn: Connection, renamed: Sequence[Renamed]) -> None:
    """Update the names of conversations' users, after their messages were recorded. If a conversation has several
    notices, the last one counts."""
    last = {one.conversation_id: one for one in renamed}
    rows = [
        (one.user.organization_id, id, one.user.recipient, one.user.user_id, one.at)
        for id, one in sorted(last.items(), key=lambda pair: pair[0].int)
    ]
    if rows:
        await conn.execute(RENAME, *_columns(rows, 5))


MERGED = """
SELECT c.id, c.merged_into
  FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id)
  JOIN whatsapp_conversations c ON c.organization_id = item.organization_id AND c.merged_into = item.id
"""


async def merged(conn: Connection, organization_ids: Sequence[UUID], ids: Sequence[UUID]) -> list[tuple[UUID, UUID]]:
    """Conversations that were merged into these: (its id, the id that it was merged into)."""
    return [(row["id"], row["merged_into"]) for row in await conn.fetch(MERGED, organization_ids, ids)]


#: A window, from the newest message that opens one ({0}) and Meta's newest refusal ({1}).
_EXPIRES = "CASE WHEN {1} >= {0} THEN least({1}, {0} + interval '1 day') ELSE {0} + interval '1 day' END"

# Updates rows in the order of the arrays, which are sorted by id: these connections plan nested loops, with the arrays
# as the outer side.
HEAR = f"""
UPDATE whatsapp_conversations c
   SET last_inbound_at = greatest(c.last_inbound_at, v.heard_at),
       opened_at = greatest(c.opened_at, v.opened_at),
       expires_at = {_EXPIRES.format("greatest(c.opened_at, v.opened_at)", "c.closed_at")},
       referred_at = greatest(c.referred_at, v.referred_at),
       user_id = CASE WHEN c.user_id IS NULL OR c.last_inbound_at IS NULL OR v.named_at >= c.last_inbound_at
                      THEN coalesce(v.user_id, c.user_id) ELSE c.user_id END,
       recipient = CASE WHEN v.recipient LIKE '+%' AND c.recipient NOT LIKE '+%' THEN v.recipient ELSE c.recipient END
  FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[], $6::text[], $7::text[],
              $8::timestamptz[])
       AS v (organization_id, id, heard_at, opened_at, referred_at, user_id, recipient, named_at)
 WHERE c.organization_id = v.organization_id AND c.id = v.id
"""


async def open_windows(conn: Connection, heard: Sequence[UserActivity]) -> None:
    """Record messages and calls of users: those with `opens` open or extend the window of their conversation."""
    by_conversation: dict[tuple[UUID, UUID], list[UserActivity]] = {}
    for one in heard:
        by_conversation.setdefault((one.user.organization_id, one.conversation_id), []).append(one)
    if not by_conversation:
        return
    rows = []
    for key in sorted(by_conversation, key=lambda key: key[1].int):
        some = by_conversation[key]
        named = _newest([one for one in some if one.user.user_id])
        numbered = _newest([one for one in some if one.user.digits])
        rows.append(
            (
                *key,
                max((one.at for one in some if not one.is_call), default=None),
                max((one.at for one in some if one.opens), default=None),
                max((one.at for one in some if one.referred), default=None),
                None if named is None else named.user.user_id,
                (numbered or some[0]).user.recipient,
                None if named is None else named.at,
            )
        )
    await conn.execute(HEAR, *_columns(rows, 8))


def _newest(some: Sequence[UserActivity]) -> UserActivity | None:
    """The newest, and of several in the same second the last; None if there are none."""
    return max(reversed(some), key=lambda one: one.at, default=None)


# In the order of the arrays, as above.
HOLD = """
SELECT FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id) CROSS JOIN LATERAL (
       SELECT FROM whatsapp_conversations
        WHERE organization_id = item.organization_id AND id = item.id FOR NO KEY UPDATE) held
"""


async def hold(conn: Connection, some: Collection[tuple[UUID, UUID]], others: Collection[tuple[UUID, UUID]]) -> None:
    """Lock conversations, (organization, conversation) each, which the caller changes by two statements, `some` and
    `others`: it cannot deadlock with one that changes them the other way round."""
    if some and others:
        keys = sorted({*some, *others}, key=lambda key: key[1].int)
        await conn.execute(HOLD, *_columns(keys, 2))


CLOSE = f"""
UPDATE whatsapp_conversations c
   SET closed_at = greatest(c.closed_at, v.at),
       expires_at = {_EXPIRES.format("c.opened_at", "greatest(c.closed_at, v.at)")}
  FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) AS v (organization_id, id, at)
 WHERE c.organization_id = v.organization_id AND c.id = v.id
"""


async def close_windows(conn: Connection, refused: Mapping[tuple[UUID, UUID], datetime]) -> None:
    """Record that Meta refused texts because the window is closed: (organization, conversation) → time of refusal."""
    rows = [(*key, refused[key]) for key in sorted(refused, key=lambda key: key[1].int)]
    if rows:
        await conn.execute(CLOSE, *_columns(rows, 3))


#: How long free hours may still be discovered: a day for the answer, a week of repetitions, and some margin.
_REFERRED_WITHIN = timedelta(days=9)
ANY_REFERRED = "SELECT EXISTS (SELECT FROM whatsapp_conversations WHERE referred_at > $1)"
# 72 hours are free from the first answer, if it comes within a day of the user's click. This is an estimate: Meta's
# statuses decide in the end. An answer may be addressed to any name of the user, and have been accepted in a
# conversation that was merged into this one since.
FREE = """
WITH named AS MATERIALIZED (
    SELECT c.organization_id, coalesce(c.merged_into, c.id) AS id, array_agg(DISTINCT m.recipient) AS addresses
      FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id) CROSS JOIN LATERAL (
           SELECT organization_id, conversation_id, recipient FROM whatsapp_messages
            WHERE organization_id = item.organization_id AND id = item.id) m CROSS JOIN LATERAL (
           SELECT organization_id, id, merged_into FROM whatsapp_conversations
            WHERE organization_id = m.organization_id AND id = m.conversation_id) c
     GROUP BY 1, 2
), referred AS MATERIALIZED (
    SELECT c.*, ARRAY(SELECT c.id UNION ALL
                      SELECT id FROM whatsapp_conversations
                       WHERE organization_id = c.organization_id AND merged_into = c.id) AS ids,
           ARRAY(SELECT unnest(named.addresses) UNION
                 SELECT unnest(spellings_of(names.name))
                   FROM names_of_person(c.organization_id, c.recipient) names) AS addresses
      FROM named CROSS JOIN LATERAL (
           SELECT organization_id, id, recipient, referred_at FROM whatsapp_conversations
            WHERE organization_id = named.organization_id AND id = named.id AND referred_at > $3) c
), answered AS MATERIALIZED (
    SELECT referred.organization_id, referred.id, first.at FROM referred CROSS JOIN LATERAL (
           SELECT min(sent.at) AS at FROM unnest(referred.addresses) AS one (address) CROSS JOIN LATERAL (
                  SELECT min(sent_at) AS at FROM whatsapp_messages
                   WHERE organization_id = referred.organization_id AND recipient = one.address AND id >= $4
                     AND conversation_id = ANY (referred.ids) AND direction = 'outbound'
                     AND sent_at BETWEEN referred.referred_at AND referred.referred_at + interval '1 day') sent) first
     WHERE first.at IS NOT NULL ORDER BY referred.id
)
UPDATE whatsapp_conversations c SET free_until = answered.at + interval '72 hours'
  FROM answered WHERE c.organization_id = answered.organization_id AND c.id = answered.id
"""


async def any_referred(conn: Connection) -> bool:
    """Whether there is any conversation that `note_answers` could change."""
    found: bool = await conn.fetchval(ANY_REFERRED, clock.now() - _REFERRED_WITHIN)
    return found


async def note_answers(conn: Connection, messages: Sequence[tuple[UUID, UUID]]) -> None:
    """Begin the free hours of conversations whose user came through an advertisement and was answered within a day.

    `messages`: (organization, message) of messages just sent, or of the user's first message.
    """
    since = clock.now() - _REFERRED_WITHIN
    if messages:
        await conn.execute(FREE, *_columns(messages, 2), since, uuid7_floor(since))


def _columns(rows: Sequence[tuple[object, ...]], width: int) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
