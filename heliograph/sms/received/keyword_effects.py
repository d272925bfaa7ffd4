"""The effects of keywords: STOP opts a person out, START lifts that, and both are confirmed; HELP is answered.

The rule nobody may break: keywords of a person take effect in the order in which they were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import structlog

from heliograph.base import phones
from heliograph.base.database.bounded_scan import LOOK
from heliograph.base.database.pool import Connection
from heliograph.consent import keywords, names, optouts
from heliograph.consent.history import Statement
from heliograph.consent.optouts import OptOut, Pair
from heliograph.sms.received.message import Message
from heliograph.sms.received.replies import KeywordReply

log = structlog.get_logger()

#: A reply to an older message would surprise rather than inform: workers were down, or the number had no owner.
REPLY_WITHIN = timedelta(hours=1)
#: How many of the messages that organizations sent are searched for a batch, divided among the organizations: half a
#: second.
MOST_LOOKED = 20 * LOOK

# Messages have no index by recipient: an organization's newest ones are searched, once for everybody who wrote to it:
# five hundred searches took longer than a statement may. This is done only for words that may be an answer, or if
# several organizations share the number. `IS TRUE` makes the IN a look-up in a hash table rather than a join.
LAST = """
SELECT DISTINCT ON (organization_id, person) organization_id, person, campaign_id IS NOT NULL AS campaign
  FROM unnest($1::uuid[]) AS one (organization_id) CROSS JOIN LATERAL (
       SELECT id, person_of(recipient) AS person, campaign_id FROM messages
        WHERE organization_id = one.organization_id ORDER BY id DESC LIMIT $3) recent
 WHERE (person IN (SELECT unnest($2::text[]))) IS TRUE
 ORDER BY organization_id, person, id DESC
"""
# After a large campaign, most of its messages are not among the newest. So people who are not found there are looked up
# by all spellings of their number: the last message to a contact, which is noted within three minutes, and campaigns
# that are still being sent to them. LIMIT keeps each look-up a look-up.
FURTHER = """
SELECT organization_id, person, bool_or(campaign) AS campaign FROM (
    SELECT one.organization_id, one.person, last.campaign
      FROM unnest($1::uuid[], $2::text[], $3::text[]) AS one (organization_id, person, phone) CROSS JOIN LATERAL (
           SELECT id FROM contacts
            WHERE organization_id = one.organization_id AND phone = one.phone AND mode = 'live' LIMIT 1) contact
           CROSS JOIN LATERAL (
           SELECT message_id FROM contact_last_messages
            WHERE organization_id = one.organization_id AND mode = 'live' AND contact_id = contact.id LIMIT 1) noted
           CROSS JOIN LATERAL (
           SELECT campaign_id IS NOT NULL AS campaign FROM messages
            WHERE organization_id = one.organization_id AND id = noted.message_id LIMIT 1) last
    UNION ALL
    SELECT one.organization_id, one.person, true
      FROM unnest($1::uuid[], $2::text[], $3::text[]) AS one (organization_id, person, phone) CROSS JOIN LATERAL (
           SELECT id, staged_to FROM campaigns
            WHERE organization_id = one.organization_id AND mode = 'live' AND channel = 'sms'
              AND status IN ('staging', 'running', 'paused') LIMIT 100) sent
           CROSS JOIN LATERAL (
           SELECT FROM campaign_recipients
            WHERE organization_id = one.organization_id AND campaign_id = sent.id
              AND phone = one.phone COLLATE "C" AND phone <= sent.staged_to LIMIT 1) theirs) known
 GROUP BY organization_id, person
"""


async def find(conn: Connection, messages: Sequence[Message]) -> None:
    """Set the keyword of each message that is one."""
    whole = [(one, one.text) for one in messages if one.text is not None and not one.group.missing]
    known = await names.of(conn, [(one.owner.organization_id, text) for one, text in whole])
    sharing: dict[UUID, set[str]] = {}
    for one, _ in whole:
        sharing.setdefault(one.group.id, set()).update(known.get(one.owner.organization_id, ()))
    for one, text in whole:
        owner = one.owner
        countries = [phones.country(one.phone) if one.phone else "", owner.country or ""]
        mine = known.get(owner.organization_id, frozenset())
        others = sharing[one.group.id]
        found = keywords.find(text, additions=owner.words, countries=countries, names=mine, others=others)
        # A supplier that has stopped sending, on a word of its own, does not ask whether it is clear.
        asked = one.group.first.asked
        if asked is not None and (found is None or found[0] not in ("stop", asked)):
            found = asked, asked
        if found is not None and one.phone is None:
            log.warning("keyword from an invalid phone number", message_id=str(one.group.id), keyword=found[0])
        elif found is not None:
            one.keyword, one.word = found


async def obey(conn: Connection, messages: Sequence[Message], at: datetime) -> tuple[int, list[KeywordReply]]:
    """Act on keywords. Returns webhook deliveries queued, and the replies that follow."""
    saying = [message for message in messages if message.keyword is not None]
    campaign = await _last(conn, [one for one in saying if one.shared or one.keyword == "doubtful"])
    for one in saying:
        if one.keyword == "doubtful":
            # Either the answer to a campaign, or a word that needs clarification: HELP says what to write.
            one.keyword = "stop" if campaign.get(one.person) else "help"
    opted_out = await optouts.current(conn, {message.person for message in saying})
    deliveries = 0
    wanted: list[KeywordReply] = []
    for turn in _turns(saying):
        out, back, heard = [], [], []
        for one in turn:
            if one.keyword == "start" and one.person not in opted_out:
                # There is nothing to confirm, and YES is an answer to something else.
                one.keyword = None if one.word in keywords.ONLY_OPTED_OUT else one.keyword
                continue
            if one.keyword == "stop":
                since = one.group.first.received_at
                out.append(OptOut(*one.pair, since, optouts.KEYWORD, one.word, one.group.id))
            elif one.keyword == "start":
                said_at = one.group.first.received_at
                back.append(Statement(*one.pair, said_at, optouts.KEYWORD, one.word, one.group.id))
            heard.append(one)
        deliveries += await optouts.suppress(conn, out)
        # It may have waited, for workers or for its number's owner: what was said or recorded since stays.
        await optouts.lift_earlier(conn, back)
        # Whoever has a later turn has this one too.
        opted_out = await optouts.current(conn, {one.person for one in turn})
        for one in heard:
            # If organizations share a number, only those that have written to the person reply.
            silent = one.answered or (one.shared and one.person not in campaign)
            silent |= one.keyword == "start" and one.person in opted_out
            if not silent and at - one.group.first.received_at < REPLY_WITHIN:
                wanted.append(KeywordReply(*one.pair, one.keyword or "", one.owner.sender_id, at))
    return deliveries, wanted


async def _last(conn: Connection, messages: Sequence[Message]) -> dict[Pair, bool]:
    """For people to whom the organization has recently written, and those who answer a campaign of longer ago: whether
    the last message was a campaign's."""
    if not messages:
        return {}
    organizations = sorted({one.owner.organization_id for one in messages})
    people = sorted({person for _, person in (one.person for one in messages)})
    look = min(LOOK, MOST_LOOKED // len(organizations))
    rows = await conn.fetch(LAST, organizations, people, look)
    last = {(row["organization_id"], row["person"]): row["campaign"] for row in rows}
    # On a shared number, whoever wrote to them longer ago does not reply.
    asking = [one for one in messages if one.keyword == "doubtful" and one.person not in last]
    if left := {(*one.person, phone) for one in asking for phone in phones.spellings(one.pair[1])}:
        rows = await conn.fetch(FURTHER, *(list(column) for column in zip(*sorted(left), strict=True)))
        last |= {(row["organization_id"], row["person"]): True for row in rows if row["campaign"]}
    return last


def _turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Messages in order of arrival, each number at most once per turn."""
    turns: list[list[Message]] = []
    said: dict[Pair, int] = {}
    for message in messages:
        turn = said[message.person] = said.get(message.person, -1) + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(message)
    return turns
