"""Retention of SMS: what is deleted, and when."""

from __future__ import annotations

from datetime import date, timedelta

from heliograph.accounts import usage
from heliograph.base.database.pool import Connection
from heliograph.base.database.retention_rules import Deletion, Rules, Sums, Table
from heliograph.senders import owners
from heliograph.sms.watched import history, hours, pdus

#: Suppliers' receipts and ids serve as evidence and to match late receipts; networks send none after a week.
EVIDENCE = timedelta(days=14)
RECEIPTS = timedelta(days=93)
#: The longest validity is three days, which quiet hours interrupt.
WAIT = timedelta(days=7)
#: Suppliers' bills and disputes are monthly: a year, and the month before it for comparison.
RECONCILIATION = timedelta(days=400)

DELETE_INBOUND = """
DELETE FROM inbound_messages WHERE id IN (SELECT id FROM inbound_messages WHERE id < $1 LIMIT $2)
"""
DELETE_REPLIES = """
DELETE FROM automatic_replies WHERE (organization_id, recipient, kind) IN (
    SELECT organization_id, recipient, kind FROM automatic_replies WHERE replied_at < $1 LIMIT $2)
"""
# Callbacks that cannot be opened or read.
DELETE_SUPPLIER_CALLBACKS = """
WITH due AS MATERIALIZED (
    SELECT id FROM queue WHERE kind = 'sms_in' AND id < $1 LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM supplier_callbacks USING due WHERE supplier_callbacks.id = due.id
)
DELETE FROM queue USING due WHERE queue.id = due.id
"""

# A day longer than the attempts that refer to them: a worker updates the day when it refers to them again.
DELETE_DECISIONS = """
DELETE FROM route_decisions WHERE id IN (
    SELECT id FROM route_decisions WHERE used_on < $1::timestamptz::date - 1 LIMIT $2)
"""

# Readers check their age, so no process has to be notified.
DELETE_OWNERS = """
DELETE FROM sender_owners WHERE (sender, supplier_id) IN (
    SELECT sender, supplier_id FROM sender_owners WHERE seen_at < $1 LIMIT $2)
"""

DELETE_DAYS = """
DELETE FROM reconciliation_days WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM reconciliation_days WHERE day < ($1::timestamptz AT TIME ZONE 'UTC')::date ORDER BY day LIMIT $2))
"""


async def _close(conn: Connection, *, partition: str, month: date) -> None:
    await usage.close(conn, source=partition)


RULES = Rules(
    tables=(
        Table(name="send_keys", time="created_at", bound=lambda at: at.keys, by="day"),
        # A receipt's raw bytes may repeat the beginning of the text.
        Table(name="receipt_bytes", time="received_at", bound=lambda at: at.text, by="day"),
        Table(
            name="messages",
            time="accepted_at",
            bound=lambda at: at.metadata,
            text="body",
            later="send_at",
            unsent="status = 'accepted'",
            unsent_for=WAIT,
            sums=Sums(usage.count, _close),
            stray=usage.stray,
        ),
        Table(name="received_messages", time="received_at", bound=lambda at: at.metadata, text="body"),
        Table(name="receipts", time="received_at", bound=lambda at: at.now - RECEIPTS),
        Table(name="reconciliation", time="hour", bound=lambda at: at.now - RECONCILIATION),
        Table(name="sms_parts", time="created_at", bound=lambda at: at.now - EVIDENCE),
    ),
    deletions=(
        Deletion("parts of received messages", DELETE_INBOUND, lambda at: at.text, "id"),
        Deletion("automatic replies", DELETE_REPLIES, lambda at: at.text),
        Deletion("decisions of routes", DELETE_DECISIONS, lambda at: at.metadata - timedelta(days=31)),
        Deletion("days of reconciliation", DELETE_DAYS, lambda at: at.now - RECONCILIATION),
        Deletion("suppliers of numbers", DELETE_OWNERS, lambda at: at.now - owners.KEPT),
        Deletion("hours of suppliers", hours.DELETE, lambda at: at.now - RECEIPTS),
        Deletion("circuits of suppliers", history.FORGET, lambda at: at.now - history.KEPT),
        Deletion("PDUs that were watched", pdus.DELETE, lambda at: at.now - pdus.KEPT),
        Deletion("callbacks of suppliers", DELETE_SUPPLIER_CALLBACKS, lambda at: at.text, "id"),
    ),
)
