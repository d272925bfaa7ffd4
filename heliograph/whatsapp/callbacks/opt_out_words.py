"""STOP and START keywords that users send by WhatsApp. They get no reply: the effect is visible.

Callbacks arrive in any order, and an older word that arrives late must not undo a newer one. So the newest word of each
user is kept. The rule nobody may break: of two words in the same second, STOP wins.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.consent import keywords, optouts
from heliograph.consent.history import Statement
from heliograph.consent.optouts import OptOut, Pair

#: Types of messages whose text is the user's own words. An edited message counts as it reads now.
SPOKEN = frozenset({"text", "button", "interactive", "edit"})


class Said(msgspec.Struct, frozen=True, gc=False):
    """A keyword."""

    organization_id: UUID
    #: E.164 with +, or a user id.
    recipient: str
    at: datetime
    #: "stop" or "start".
    keyword: str
    #: As returned by `keywords.fold`.
    word: str
    message_id: UUID

    @property
    def person(self) -> Pair:
        """The person: one of their names, in the form that all its spellings share."""
        return self.organization_id, phones.person(self.recipient)


ADDITIONS = "SELECT id, opt_out_words FROM organizations WHERE id = ANY ($1) AND opt_out_words <> '{}'"


async def additions(conn: Connection, organizations: Collection[UUID]) -> dict[UUID, frozenset[str]]:
    """The organizations' additional words for STOP, folded."""
    rows = await conn.fetch(ADDITIONS, list(organizations))
    return {row["id"]: frozenset(map(keywords.fold, row["opt_out_words"])) for row in rows}


NAMES = """
SELECT item.n, names.name FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS item (organization_id, recipient, n)
       CROSS JOIN LATERAL names_of_person(item.organization_id, item.recipient) names
"""
# The number may be stored in any spelling, as dialed, while Meta writes it differently; and whoever was written to at a
# number may answer under a user id. Each address is searched for itself: for all at once, reading the organization's
# messages from the newest looks better, and would read all of them if nobody wrote there.
LAST = """
SELECT item.organization_id, item.recipient
  FROM unnest($1::uuid[], $2::text[], $3::text[]) AS item (organization_id, recipient, addresses) CROSS JOIN LATERAL (
       SELECT sent.campaign_id FROM unnest(string_to_array(item.addresses, ' ')) AS one (address) CROSS JOIN LATERAL (
              SELECT id, campaign_id FROM whatsapp_messages
               WHERE organization_id = item.organization_id AND recipient = one.address AND direction = 'outbound'
               ORDER BY id DESC LIMIT 1) sent
        ORDER BY sent.id DESC LIMIT 1) last
 WHERE last.campaign_id IS NOT NULL
"""


async def after_campaign(conn: Connection, pairs: Sequence[Pair]) -> set[Pair]:
    """The pairs whose last message came from a campaign."""
    if not pairs:
        return set()
    organizations, recipients = [one for one, _ in pairs], [one for _, one in pairs]
    names = [[one] for one in recipients]
    for row in await conn.fetch(NAMES, organizations, recipients):
        names[row["n"] - 1].append(row["name"])
    addresses = [" ".join(dict.fromkeys(each for one in known for each in phones.spellings(one))) for known in names]
    rows = await conn.fetch(LAST, organizations, recipients, addresses)
    return {(row["organization_id"], row["recipient"]) for row in rows}


# A later keyword from the same person under another name takes precedence as well.
NEWEST = """
WITH newest AS (
    INSERT INTO whatsapp_words AS known (organization_id, recipient, word, said_at)
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::timestamptz[])
           AS item (organization_id, recipient, word, said_at)
     ORDER BY organization_id, recipient
    ON CONFLICT (organization_id, person) DO UPDATE SET word = excluded.word, said_at = excluded.said_at
     WHERE (excluded.said_at, excluded.word = 'stop') > (known.said_at, known.word = 'stop')
    RETURNING organization_id, person, word, said_at
)
SELECT newest.organization_id, newest.person FROM newest
  LEFT JOIN LATERAL (
       SELECT said.said_at FROM names_of_person(newest.organization_id, newest.person) names CROSS JOIN LATERAL (
              SELECT other.said_at FROM whatsapp_words other
               WHERE other.organization_id = newest.organization_id AND other.person = names.name
                 AND (other.said_at, other.word = 'stop') > (newest.said_at, newest.word = 'stop') LIMIT 1) said
        LIMIT 1) later ON true
 WHERE later.said_at IS NULL
"""


async def obey(conn: Connection, said: Sequence[Said]) -> tuple[set[UUID], int]:
    """Act on the newest words, in the caller's transaction.

    Returns the ids of the messages that were keywords, and the number of webhook deliveries queued. YES is a keyword
    only from a user who has opted out: otherwise it answers something else.
    """
    if not said:
        return set(), 0
    silent = await optouts.current(conn, {one.person for one in said})
    silent |= {one.person for one in said if one.keyword == "stop"}
    meant = {one.message_id for one in said if one.word not in keywords.ONLY_OPTED_OUT or one.person in silent}
    newest: dict[Pair, Said] = {}
    for one in sorted(said, key=lambda one: (one.at, one.keyword == "stop")):
        newest[one.person] = one
    rows = await conn.fetch(
        NEWEST,
        [one.organization_id for one in newest.values()],
        [recipient for _, recipient in newest],
        [one.keyword for one in newest.values()],
        [one.at for one in newest.values()],
    )
    counting = [newest[row["organization_id"], row["person"]] for row in rows]
    await optouts.lift_earlier(
        conn,
        [
            Statement(one.organization_id, one.recipient, one.at, optouts.KEYWORD, one.word, one.message_id)
            for one in counting
            if one.keyword == "start"
        ],
    )
    deliveries = await optouts.suppress(
        conn,
        [
            OptOut(one.organization_id, one.recipient, one.at, optouts.KEYWORD, one.word, one.message_id)
            for one in counting
            if one.keyword == "stop"
        ],
    )
    return meant, deliveries
