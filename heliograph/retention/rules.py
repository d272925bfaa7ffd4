"""The retention rules: those of each channel (`sms/retention.py`, `whatsapp/retention.py`), and here those for tables
that no channel owns.

The rule nobody may break: a statement deletes a bounded number of rows, found by an index or by blocks.
"""

from __future__ import annotations

from datetime import timedelta

from heliograph import notices, requests
from heliograph.base.database.retention_rules import Deletion, Rules, Table
from heliograph.contacts.imports.drafts import KEPT as IMPORTS_KEPT
from heliograph.contacts.marked import UNDONE_FOR
from heliograph.guard.windows import SPAN
from heliograph.health import findings, sizes, webs
from heliograph.mail import outbox
from heliograph.networks.learned import KEPT as NETWORKS
from heliograph.people import email_change, invitations, links, sessions, tries
from heliograph.people.operators import noticing
from heliograph.people.operators import sessions as operator_sessions
from heliograph.people.passkeys import keeping
from heliograph.sending import attempts
from heliograph.sms import retention as sms_retention
from heliograph.sms.by_hand import own_numbers
from heliograph.traces import contexts
from heliograph.webhooks.catcher import OPEN_FOR
from heliograph.whatsapp import retention as whatsapp_retention

#: Events are fetched and replayed soon or never; a message's outcome is in its own row.
EVENTS, WEBHOOKS = timedelta(days=90), timedelta(days=30)
#: A campaign's progress by minute, and abandoned drafts of campaigns.
MINUTES, DRAFTS = timedelta(days=90), timedelta(days=30)
#: Responses to webhook attempts are inspected soon after.
EVIDENCE = timedelta(days=7)

# The event of a received message repeats its text. The text is forgotten; the fact that there was a message is not.
BLANK_EVENTS = """
UPDATE events SET data = jsonb_set(data::jsonb, '{message,text}', 'null')::text WHERE (organization_id, id) IN (
    SELECT organization_id, id FROM events
     WHERE id < $1 AND kind = 'message.received' AND data LIKE '%"text":"%' LIMIT $2)
"""
# Imported people and their previous data are as personal as texts; the import itself stays listed.
DELETE_IMAGES = """
DELETE FROM contact_import_images WHERE (organization_id, import_id, batch, contact_id) IN (
    SELECT organization_id, import_id, batch, contact_id FROM contact_import_images WHERE import_id < $1 LIMIT $2)
"""
# Except lists from which a scheduled campaign is yet to gather its audience: it would be sent to nobody.
DELETE_BATCHES = """
DELETE FROM contact_import_batches WHERE (organization_id, import_id, batch) IN (
    SELECT organization_id, import_id, batch FROM contact_import_batches b
     WHERE import_id < $1
       AND NOT EXISTS (SELECT FROM campaigns
                        WHERE organization_id = b.organization_id AND step_at IS NOT NULL
                          AND status IN ('scheduled', 'staging') AND audience_import = b.import_id)
     LIMIT $2)
"""
# Uploads are kept for as long as their import may be continued. A running one may be taken over by another worker,
# which would find nothing more to import, and end it.
DELETE_CHUNKS = """
DELETE FROM contact_import_chunks WHERE (organization_id, import_id, number) IN (
    SELECT organization_id, import_id, number FROM contact_import_chunks c
     WHERE import_id < $1
       AND NOT EXISTS (SELECT FROM contact_imports
                        WHERE organization_id = c.organization_id AND id = c.import_id AND state = 'running')
     LIMIT $2)
"""
DELETE_IMPORT_REJECTS = """
DELETE FROM contact_import_rejects WHERE (organization_id, import_id, row) IN (
    SELECT organization_id, import_id, row FROM contact_import_rejects WHERE import_id < $1 LIMIT $2)
"""
DELETE_DRAFTS = """
DELETE FROM contact_imports WHERE (organization_id, id) IN (
    SELECT organization_id, id FROM contact_imports
     WHERE id < $1 AND state IN ('uploading', 'reading', 'checking', 'checked') LIMIT $2)
"""
# They contain contacts that were deleted.
DELETE_CHANGES = """
DELETE FROM contact_changes WHERE (organization_id, mode, change_id, contact_id) IN (
    SELECT organization_id, mode, change_id, contact_id FROM contact_changes WHERE changed_at < $1 LIMIT $2)
"""
DELETE_TAG_CHANGES = """
DELETE FROM tag_changes WHERE (organization_id, mode, id) IN (
    SELECT organization_id, mode, id FROM tag_changes WHERE finished_at < $1 LIMIT $2)
"""
# A conversation is deleted with its last message.
DELETE_THREADS = """
DELETE FROM inbox_threads WHERE (organization_id, id) IN (
    SELECT organization_id, id FROM inbox_threads WHERE heard_at < $1 LIMIT $2)
"""
DELETE_REPLAYS = """
DELETE FROM webhook_replays WHERE ctid IN (
    SELECT ctid FROM webhook_replays WHERE status <> 'running' AND created_at < $1 LIMIT $2)
"""
# By blocks: the roll-ups of an endpoint that was disabled long ago are stored among those of its time.
DELETE_WEBHOOK_TRAFFIC = """
DELETE FROM webhook_traffic WHERE ctid IN (SELECT ctid FROM webhook_traffic WHERE hour < $1 LIMIT $2)
"""
# A catcher that ends deletes what it has caught; these were stored by a worker at that very moment.
DELETE_CAUGHT = """
DELETE FROM webhook_caught WHERE ctid IN (SELECT ctid FROM webhook_caught WHERE caught_at < $1 LIMIT $2)
"""
DELETE_GUARD_HELD = """
DELETE FROM guard_held WHERE (organization_id, message_id) IN (
    SELECT organization_id, message_id FROM guard_held WHERE held_at < $1 LIMIT $2)
"""
DELETE_GUARD_HOLDS = """
DELETE FROM guard_holds WHERE (organization_id, id) IN (
    SELECT organization_id, id FROM guard_holds WHERE begun_at < $1 LIMIT $2)
"""
DELETE_GUARD_CONVERSIONS = """
DELETE FROM guard_conversions WHERE (organization_id, message_id) IN (
    SELECT organization_id, message_id FROM guard_conversions WHERE converted_at < $1 LIMIT $2)
"""
DELETE_GUARD_CHALLENGES = """
DELETE FROM guard_challenges WHERE (organization_id, message_id) IN (
    SELECT organization_id, message_id FROM guard_challenges WHERE passed_at < $1 LIMIT $2)
"""
DELETE_GUARD_SEEN = """
DELETE FROM guard_seen WHERE (organization_id, id) IN (
    SELECT organization_id, id FROM guard_seen WHERE at < $1 LIMIT $2)
"""
# By blocks: a campaign's minutes are stored together.
DELETE_CAMPAIGN_MINUTES = """
DELETE FROM campaign_minutes WHERE ctid IN (SELECT ctid FROM campaign_minutes WHERE minute < $1 LIMIT $2)
"""
# By blocks: the recipients skipped by a campaign are stored together.
DELETE_SKIPPED = """
DELETE FROM campaign_skipped WHERE ctid IN (SELECT ctid FROM campaign_skipped WHERE id < $1 LIMIT $2)
"""
DELETE_CAMPAIGN_DRAFTS = """
DELETE FROM campaign_drafts WHERE (organization_id, mode, id) IN (
    SELECT organization_id, mode, id FROM campaign_drafts
     WHERE saved_at < $1 OR discarded_at < now() - interval '1 hour' LIMIT $2)
"""
DELETE_REQUEST_COUNTS = """
DELETE FROM request_counts WHERE ctid IN (SELECT ctid FROM request_counts WHERE hour < $1 LIMIT $2)
"""
DELETE_WORKERS = "DELETE FROM workers WHERE id IN (SELECT id FROM workers WHERE seen_at < $1 LIMIT $2)"

#: Rules for tables that no channel owns.
SHARED = Rules(
    tables=(
        Table(
            name="attempts",
            time="ended_at",
            bound=lambda at: at.metadata,
            text="detail",
            erased="''",
            key="organization_id, message_id, attempt",
            holds_text=attempts.MAY_QUOTE,
        ),
        Table(name="events", time="created_at", bound=lambda at: max(at.metadata, at.now - EVENTS)),
        Table(
            name="webhook_attempts",
            time="started_at",
            bound=lambda at: at.now - WEBHOOKS,
            # The beginning of an unsuccessful response, which may repeat a text.
            text="detail",
            erased="''",
            key="organization_id, event_id, endpoint_id, attempt",
            holds_text="status IS NOT NULL",
        ),
        Table(name="webhook_successes", time="started_to", bound=lambda at: at.now - WEBHOOKS),
        Table(name="webhook_attempt_evidence", time="started_at", bound=lambda at: at.now - EVIDENCE, by="day"),
        Table(name="requests", time="at", bound=lambda at: at.now - timedelta(days=requests.DAYS), by="day"),
        Table(name="message_traces", time="at", bound=lambda at: at.now - timedelta(days=contexts.DAYS), by="day"),
        Table(name="number_networks", time="learned_at", bound=lambda at: at.now - NETWORKS),
        Table(name="number_lookups", time="asked_at", bound=lambda at: at.now - NETWORKS),
        # The audit log allows no deletions.
        Table(name="audit_log", time="at", bound=lambda at: at.audit, keeps_stray=True),
    ),
    deletions=(
        Deletion("contacts before imports", DELETE_IMAGES, lambda at: at.text, "id"),
        Deletion("batches of imports", DELETE_BATCHES, lambda at: at.text, "id"),
        Deletion("uploaded files", DELETE_CHUNKS, lambda at: at.now - IMPORTS_KEPT, "id"),
        Deletion("rejected rows", DELETE_IMPORT_REJECTS, lambda at: at.now - IMPORTS_KEPT, "id"),
        Deletion("abandoned imports", DELETE_DRAFTS, lambda at: at.now - IMPORTS_KEPT, "id"),
        Deletion("changes of contacts", DELETE_CHANGES, lambda at: at.now - UNDONE_FOR),
        Deletion("changes of tags", DELETE_TAG_CHANGES, lambda at: at.now - timedelta(days=7)),
        Deletion("text in events", BLANK_EVENTS, lambda at: at.text, "id"),
        Deletion("threads of the inbox", DELETE_THREADS, lambda at: at.metadata),
        Deletion("replays", DELETE_REPLAYS, lambda at: at.now - WEBHOOKS),
        Deletion("roll-ups of webhook attempts", DELETE_WEBHOOK_TRAFFIC, lambda at: at.now - WEBHOOKS),
        Deletion("caught events", DELETE_CAUGHT, lambda at: at.now - OPEN_FOR),
        Deletion("messages held by the guard", DELETE_GUARD_HELD, lambda at: at.now - WEBHOOKS),
        Deletion("conversions", DELETE_GUARD_CONVERSIONS, lambda at: at.now - WEBHOOKS),
        Deletion("passed challenges", DELETE_GUARD_CHALLENGES, lambda at: at.metadata),
        Deletion("numbers seen by the guard", DELETE_GUARD_SEEN, lambda at: at.now - timedelta(seconds=SPAN)),
        Deletion("holds of the guard", DELETE_GUARD_HOLDS, lambda at: at.now - WEBHOOKS),
        Deletion("minutes of campaigns", DELETE_CAMPAIGN_MINUTES, lambda at: at.now - MINUTES),
        Deletion("skipped recipients of campaigns", DELETE_SKIPPED, lambda at: at.metadata, "id"),
        Deletion("drafts of campaigns", DELETE_CAMPAIGN_DRAFTS, lambda at: at.now - DRAFTS),
        Deletion("counts of requests", DELETE_REQUEST_COUNTS, lambda at: at.now - timedelta(days=requests.DAYS)),
        Deletion("notices", notices.FORGET, lambda at: at.now - timedelta(days=notices.DAYS)),
        Deletion("sessions", sessions.FORGET, lambda at: at.now),
        Deletion("sessions of the console", operator_sessions.FORGET, lambda at: at.now),
        Deletion("sign-in links", links.FORGET, lambda at: at.now),
        Deletion("expired invitations", invitations.FORGET, lambda at: at.now - invitations.KEPT),
        Deletion("unconfirmed e-mail addresses", email_change.FORGET, lambda at: at.now),
        Deletion("unverified numbers", own_numbers.FORGET_UNVERIFIED, lambda at: at.now - own_numbers.GOOD_FOR),
        Deletion("mails", outbox.FORGET, lambda at: at.now - outbox.KEPT),
        Deletion("used challenges", keeping.FORGET, lambda at: at.now - keeping.REMEMBERED),
        Deletion("failed sign-ins", tries.FORGET, lambda at: at.now - tries.CODES_FORGOTTEN),
        Deletion("workers", DELETE_WORKERS, lambda at: at.now - timedelta(days=1)),
        Deletion("web processes", webs.FORGET, lambda at: at.now - timedelta(days=1)),
        Deletion("findings of checks", findings.FORGET, lambda at: at.now - findings.KEPT),
        Deletion("notices to operators", noticing.FORGET, lambda at: at.now - noticing.KEPT),
        Deletion("sizes of the database", sizes.FORGET, lambda at: at.now - sizes.KEPT),
    ),
)
#: All rules. A new channel adds its own here.
RULES = (sms_retention.RULES, whatsapp_retention.RULES, SHARED)
