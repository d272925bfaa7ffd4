"""What retention deletes for WhatsApp, and when."""

from __future__ import annotations

from datetime import timedelta

from heliograph.base.database.retention_rules import Deletion, Rules, Sums, Table
from heliograph.whatsapp.mirror import qualities
from heliograph.whatsapp.money import closing

#: Meta repeats a callback for up to 7 days.
CALLBACKS = timedelta(days=8)
#: A message waits for up to 30 days to be sent, and Meta reports on it for 30 more.
WAIT, WAMIDS, WORDS = timedelta(days=31), timedelta(days=62), timedelta(days=45)
#: Users count toward a portfolio's messaging limit for 24 hours.
REACHED = timedelta(hours=25)

DELETE_EARLY = """
DELETE FROM whatsapp_early_statuses WHERE (number_id, wamid, status) IN (
    SELECT number_id, wamid, status FROM whatsapp_early_statuses WHERE received_at < $1 LIMIT $2)
"""
# Callbacks sealed under a key that no worker has anymore; others would have been processed by now.
DELETE_CALLBACKS = """
WITH due AS MATERIALIZED (
    SELECT id FROM queue WHERE kind = 'whatsapp_in' AND id < $1 LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM whatsapp_callbacks USING due WHERE whatsapp_callbacks.id = due.id
)
DELETE FROM queue USING due WHERE queue.id = due.id
"""
DELETE_DEAD_LETTERS = """
DELETE FROM whatsapp_dead_letters WHERE id IN (SELECT id FROM whatsapp_dead_letters WHERE id < $1 LIMIT $2)
"""
# By then, no older STOP or START can arrive that this word would have to override.
DELETE_WORDS = """
DELETE FROM whatsapp_words WHERE (organization_id, person) IN (
    SELECT organization_id, person FROM whatsapp_words WHERE said_at < $1 LIMIT $2)
"""
#: An SQL condition: nothing happened in the conversation `c` since a time, and none of its messages is left, under any
#: name or spelling of the user, nor of those of conversations that were merged into it.
IS_SILENT = """
greatest(created_at, last_inbound_at, last_outbound_at) < {before}
       AND NOT EXISTS (
           SELECT FROM (SELECT c.recipient AS address
                         UNION ALL
                        SELECT unnest(spellings_of(names.name))
                          FROM names_of_person(c.organization_id, c.recipient) names) one
            CROSS JOIN LATERAL (
                  SELECT FROM whatsapp_messages m
                   WHERE m.organization_id = c.organization_id AND m.recipient = one.address
                     AND m.conversation_id = ANY (ARRAY(
                         SELECT c.id UNION ALL
                         SELECT id FROM whatsapp_conversations
                          WHERE organization_id = c.organization_id AND merged_into = c.id))
                   LIMIT 1) kept)
"""
#: `silent`: such conversations, as they follow FROM; `most`: how many of them are deleted.
DELETE_SILENT = """
WITH silent AS MATERIALIZED (
    SELECT organization_id, id, number_id FROM {silent} LIMIT {most} FOR UPDATE SKIP LOCKED
), names AS (
    DELETE FROM whatsapp_aliases a USING silent
     WHERE a.organization_id = silent.organization_id AND a.number_id = silent.number_id
       AND a.conversation_id = silent.id
)
DELETE FROM whatsapp_conversations c USING silent
 WHERE c.organization_id = silent.organization_id AND c.id = silent.id
"""
DELETE_CONVERSATIONS = DELETE_SILENT.format(
    silent="whatsapp_conversations c WHERE " + IS_SILENT.format(before="$1"), most="$2"
)
DELETE_REACHED = """
DELETE FROM whatsapp_reached WHERE (portfolio, recipient) IN (
    SELECT portfolio, recipient FROM whatsapp_reached WHERE reached_at < $1 LIMIT $2)
"""

RULES = Rules(
    tables=(
        # While Meta may report on them they may still be charged, or hold a reservation.
        Table(
            name="whatsapp_messages",
            time="accepted_at",
            bound=lambda at: min(at.metadata, at.now - WAMIDS),
            text="content",
            unsent="status = 'accepted'",
            unsent_for=WAIT,
        ),
        Table(name="whatsapp_wamids", time="created_at", bound=lambda at: at.now - WAMIDS),
        # After the messages that caused them.
        Table(
            name="wallet_movements",
            time="created_at",
            bound=lambda at: at.metadata,
            sums=Sums(closing.count, closing.close, closing.is_ready),
            keeps_stray=True,
        ),
    ),
    deletions=(
        Deletion("qualities of numbers and templates", qualities.FORGET, lambda at: at.metadata),
        Deletion("STOP and START words", DELETE_WORDS, lambda at: at.now - WORDS),
        Deletion("early statuses", DELETE_EARLY, lambda at: at.now - CALLBACKS),
        Deletion("dead letters", DELETE_DEAD_LETTERS, lambda at: at.now - CALLBACKS, "id"),
        Deletion("callbacks", DELETE_CALLBACKS, lambda at: at.text, "id"),
        Deletion("reached users", DELETE_REACHED, lambda at: at.now - REACHED),
        Deletion("conversations", DELETE_CONVERSATIONS, lambda at: at.metadata),
    ),
)
