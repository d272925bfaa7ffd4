"""What an installation stores besides messages: organizations of all sizes, and a month of all their activity.

One organization has half of all messages; the others share the rest with a long tail (the cube of a uniform number, so
that a tenth of them have nearly half of it). Everything is generated in the database by set-based statements, from the
messages' own ids and times, so that lists, roll-ups and searches agree with each other.
"""

from __future__ import annotations

from uuid import UUID

import asyncpg

from bench.stage import Stage
from heliograph.base.crypto import seal
from heliograph.base.histogram import LENGTH
from heliograph.webhooks.delivery.signing import new_secret
from heliograph.webhooks.endpoints import context

#: Organizations, including the large one, and suppliers, including the stage's own.
ORGANIZATIONS, SUPPLIERS = 2_000, 50
#: Number of each per message.
CONTACTS, WHATSAPP, RECEIVED, AUDITED = 0.1, 0.1, 0.02, 0.05
#: Ids of other organizations and suppliers: this, followed by a number of twelve digits.
ORGANIZATION, SUPPLIER = "00000000-0000-7000-8000-", "00000000-0000-7000-9000-"
#: Campaigns of an organization that sends all month, and the one that a message of `bench_ids` belongs to: one message
#: in five belongs to a campaign.
CAMPAIGNS, CAMPAIGN_ID = 100, "00000000-0000-7000-a000-"
CAMPAIGN = f"('{CAMPAIGN_ID}' || lpad((n::bigint * {CAMPAIGNS} / $4::int)::text, 12, '0'))::uuid"

#: `:large` is the id of the large organization. Each organization gets what all of them have.
FIRST = (
    f"""
INSERT INTO organizations (id, name, country, created_at)
SELECT ('{ORGANIZATION}' || lpad(k::text, 12, '0'))::uuid, 'Organization ' || k, 'MZ', now() - interval '60 days'
  FROM generate_series(1, {ORGANIZATIONS - 1}) AS k
""",
    """
INSERT INTO quotas (organization_id, total)
SELECT id, 1000000000 FROM organizations WHERE id <> :large AND id NOT IN (SELECT organization_id FROM quotas)
""",
    """
INSERT INTO sender_ids (organization_id, id, value, status, is_default, created_at)
SELECT id, gen_random_uuid(), 'SENDER' || right(id::text, 4), 'approved', true, created_at
  FROM organizations WHERE id <> :large
UNION ALL
SELECT id, gen_random_uuid(), 'WAITS' || right(id::text, 4), 'pending', false, created_at
  FROM organizations WHERE id <> :large AND right(id::text, 2) = '00'
""",
    """
INSERT INTO api_keys (id, organization_id, name, mode, scopes, prefix, last4, secret_hash, created_at)
SELECT gen_random_uuid(), id, 'production', 'live', '{sms:send}', 'hg_live_', '0000', sha256(id::text::bytea),
       created_at
  FROM organizations WHERE id <> :large
""",
    """
WITH made AS (
    INSERT INTO users (id, email, name, created_at)
    SELECT gen_random_uuid(), 'owner' || right(id::text, 4) || '@example.com', 'Owner ' || right(id::text, 4),
           created_at
      FROM organizations WHERE id <> :large
    RETURNING id, email
)
INSERT INTO memberships (organization_id, user_id, role, created_at)
SELECT o.id, made.id, 'owner', o.created_at
  FROM organizations o JOIN made ON made.email = 'owner' || right(o.id::text, 4) || '@example.com' WHERE o.id <> :large
""",
    f"""
INSERT INTO suppliers (id, name, kind, state, simulated, settings, secret, created_at, changed_at)
SELECT ('{SUPPLIER}' || lpad(k::text, 12, '0'))::uuid, 'supplier-' || k, kind, 'draining', simulated, settings, secret,
       created_at, changed_at
  FROM generate_series(1, {SUPPLIERS - 1}) AS k, (SELECT * FROM suppliers ORDER BY id LIMIT 1) AS one
""",
)

HOUR = "date_trunc('hour', at)"
#: `:amount` is the number of messages.
THEN = {
    "traffic": f"""
INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count, segments,
                     to_sent, to_delivered)
SELECT organization_id, {HOUR}, 'sms', 'live', 'MZ', 'HELIOGRAPH', supplier_id,
       CASE WHEN failed THEN 'failed' ELSE 'delivered' END, count(*), count(*), '{{}}', '{{}}'
  FROM bench_ids GROUP BY 1, 2, 7, 8
""",
    "traffic_days": """
INSERT INTO traffic_days (organization_id, day, channel, mode, country, sender, status, count, segments, to_sent,
                          to_delivered)
SELECT organization_id, (hour AT TIME ZONE 'UTC')::date, channel, mode, country, sender, status, sum(count),
       sum(segments), histogram_sum(to_sent), histogram_sum(to_delivered)
  FROM traffic GROUP BY 1, 2, 3, 4, 5, 6, 7
""",
    "traffic_organizations": """
INSERT INTO traffic_organizations (organization_id, day, status, count)
SELECT organization_id, day, status, sum(count) FROM traffic_days WHERE mode = 'live' GROUP BY 1, 2, 3
""",
    "failure_counts": f"""
INSERT INTO failure_counts (organization_id, hour, channel, mode, country, reason, count)
SELECT organization_id, {HOUR}, 'sms', 'live', 'MZ', 'undelivered', count(*)
  FROM bench_ids WHERE failed GROUP BY 1, 2
""",
    "usage_days": """
INSERT INTO usage_days (organization_id, day, channel, country, sender, campaign_id, key_id, messages, segments,
                        refunds, refunded)
SELECT organization_id, (at AT TIME ZONE 'UTC')::date, 'sms', 'MZ', 'HELIOGRAPH',
       coalesce(campaign_id, '00000000-0000-0000-0000-000000000000'), '00000000-0000-0000-0000-000000000000',
       count(*), count(*), 0, 0
  FROM bench_ids GROUP BY 1, 2, 6
""",
    "usage_counts": """
INSERT INTO usage_counts (organization_id, month, channel, type, quantity, segments)
SELECT organization_id, date_trunc('month', at AT TIME ZONE 'UTC')::date, 'sms', 'usage', -count(*), count(*)
  FROM bench_ids GROUP BY 1, 2
""",
    "quotas": """
UPDATE quotas SET used = had.count
  FROM (SELECT organization_id, count(*) FROM bench_ids GROUP BY 1) AS had
 WHERE had.organization_id = quotas.organization_id
""",
    "reconciliation": f"""
INSERT INTO reconciliation (day, hour, supplier_id, country, network, what, currency, count, segments, charged,
                            to_receipt)
SELECT (at AT TIME ZONE 'UTC')::date, {HOUR}, supplier_id, 'MZ', '643-01', what, 'EUR', count(*), count(*),
       count(*) * 20000, '{{}}'
  FROM bench_ids, LATERAL (VALUES ('accepted'), (CASE WHEN failed THEN 'undelivered' ELSE 'delivered' END)) AS of (what)

 GROUP BY 1, 2, 3, 6
""",
    "reconciliation_days": """
INSERT INTO reconciliation_days (day, supplier_id, country, what, currency, count, segments, charged, to_receipt)
SELECT day, supplier_id, country, what, currency, sum(count), sum(segments), sum(charged), histogram_sum(to_receipt)
  FROM reconciliation GROUP BY 1, 2, 3, 4, 5
""",
    "margins": """
INSERT INTO margins (organization_id, day, supplier_id, country, network, route, price_currency, cost_currency,
                     messages, segments, price, cost)
SELECT organization_id, (at AT TIME ZONE 'UTC')::date, supplier_id, 'MZ', '643-01', 'main', 'EUR', 'EUR', count(*),
       count(*), count(*) * 30000, count(*) * 20000
  FROM bench_ids GROUP BY 1, 2, 3
""",
    "margin_days": """
INSERT INTO margin_days (day, supplier_id, country, network, route, price_currency, cost_currency, messages, segments,
                         price, cost)
SELECT day, supplier_id, country, network, route, price_currency, cost_currency, sum(messages), sum(segments),
       sum(price), sum(cost)
  FROM margins GROUP BY 1, 2, 3, 4, 5, 6, 7
""",
    "margin_organizations": """
INSERT INTO margin_organizations (organization_id, day, price_currency, cost_currency, messages, segments, price, cost)
SELECT organization_id, day, price_currency, cost_currency, sum(messages), sum(segments), sum(price), sum(cost)
  FROM margins GROUP BY 1, 2, 3, 4
""",
    "sms_parts": """
INSERT INTO sms_parts (answered_on, supplier_id, id_key, message_id, attempt, part, parts, organization_id,
                       recipient_suffix, state, created_at)
SELECT (at AT TIME ZONE 'UTC')::date, supplier_id, n || '-' || part, id, 1, part, 2, organization_id, '40000000',
       'delivered', at
  FROM bench_ids, generate_series(1, 2) AS part WHERE n % 50 = 2
""",
    "receipts": """
INSERT INTO receipts (received_on, supplier_id, fingerprint, keys, state, error, recipient, sender, received_at,
                      organization_id, message_id, attempt, part)
SELECT (at AT TIME ZONE 'UTC')::date, supplier_id, hash::uuid, ARRAY[n::text], 'delivered', '000', '258840000000',
       'HELIOGRAPH', at, CASE WHEN n % 250 > 0 THEN organization_id END, CASE WHEN n % 250 > 0 THEN id END, 1, 1
  FROM bench_ids WHERE n % 25 = 0
""",
    "webhook_endpoints": """
INSERT INTO webhook_endpoints (organization_id, id, url, subscribed_events, secret, created_at)
SELECT id, id, 'https://example.com/hook', '{message.delivered,message.failed}', '\\x00', now() - interval '40 days'
  FROM organizations
""",
    "webhook_successes": """
INSERT INTO webhook_successes (organization_id, endpoint_id, first_event, events, started_ms, duration_ms, status,
                               started_from, started_to)
SELECT organization_id, organization_id, min(event_id::text)::uuid, array_agg(event_id), array_agg(0), array_agg(20),
       array_agg(200::smallint), min(at), max(at)
  FROM bench_ids WHERE n % 100 <> 6 GROUP BY organization_id, n / 64
""",
    "webhook_attempts": """
INSERT INTO webhook_attempts (organization_id, event_id, endpoint_id, attempt, started_at, duration_ms, status, result,
                              detail)
SELECT organization_id, event_id, organization_id, attempt, at + interval '1 minute' * attempt, 20,
       CASE attempt WHEN 2 THEN 200 ELSE 500 END, CASE attempt WHEN 2 THEN 'delivered' ELSE 'status' END, ''
  FROM bench_ids, generate_series(1, 2) AS attempt WHERE n % 100 = 6
""",
    "webhook_traffic": f"""
INSERT INTO webhook_traffic (organization_id, endpoint_id, hour, result, count, took)
SELECT organization_id, organization_id, {HOUR}, 'delivered', count(*), array_fill(0::bigint, ARRAY[{LENGTH}])
  FROM bench_ids GROUP BY 1, 3
""",
    "requests": """
INSERT INTO requests (organization_id, id, mode, method, path, operation, status, error_code, duration_ms, address,
                      agent, request_id, at)
SELECT organization_id, event_id, 'live', 'POST', '/sms/send', 'sendSms', 400, 'invalid_request', 3, '192.0.2.1',
       'curl/8', hash, at
  FROM bench_ids WHERE n % 4 = 0 AND at > now() - interval '3 days'
""",
    "request_counts": f"""
INSERT INTO request_counts (organization_id, hour, mode, operation, status, error_code, count, first_at, last_at)
SELECT organization_id, {HOUR}, 'live', 'sendSms', 202, '', count(*), min(at), max(at)
  FROM bench_ids GROUP BY 1, 2
""",
    "contacts": f"""
INSERT INTO contacts (organization_id, id, name, phone, tags, created_at, updated_at, written_at)
SELECT organization_id, id, 'Person ' || n, '+25884' || lpad((n % 10000000)::text, 7, '0'),
       ARRAY[CASE n % 20 WHEN 0 THEN 'vip' ELSE 'all' END], at, at, at
  FROM bench_ids WHERE n < :amount * {CONTACTS}
""",
    "contact_last_messages": f"""
INSERT INTO contact_last_messages (organization_id, mode, contact_id, message_id)
SELECT organization_id, 'live', id, id FROM bench_ids WHERE n < :amount * {CONTACTS}
""",
    "contact_tags": f"""
INSERT INTO contact_tags (organization_id, tag, contact_id)
SELECT organization_id, CASE n % 20 WHEN 0 THEN 'vip' ELSE 'all' END, id
  FROM bench_ids WHERE n < :amount * {CONTACTS}
""",
    # None of those whom the generator sends to.
    "opt_outs": f"""
INSERT INTO opt_outs (organization_id, recipient, since, source)
SELECT organization_id, '+25885' || lpad((n % 10000000)::text, 7, '0'), at, 'keyword'
  FROM bench_ids WHERE n < :amount * {CONTACTS} AND n % 37 = 0
""",
    "consent_history": f"""
INSERT INTO consent_history (organization_id, id, recipient, said, at, source, keyword)
SELECT organization_id, id, '+25885' || lpad((n % 10000000)::text, 7, '0'), 'out', at, 'keyword', 'stop'
  FROM bench_ids WHERE n < :amount * {CONTACTS} AND n % 37 = 0
""",
    "campaigns": """
INSERT INTO campaigns (organization_id, id, mode, name, status, request_id, created_at, started_at, completed_at,
                       message_template, sender_id, audience_tag_match_mode, total, delivered, failed, forgotten)
SELECT organization_id, campaign_id, 'live', 'Campaign ' || right(campaign_id::text, 3), 'completed', 'bench', min(at),
       min(at), max(at), 'Hello', gen_random_uuid(), 'any', count(*), count(*) FILTER (WHERE NOT failed),
       count(*) FILTER (WHERE failed), true
  FROM bench_ids WHERE campaign_id IS NOT NULL GROUP BY 1, 2
""",
    "received_messages": f"""
INSERT INTO received_messages (organization_id, id, supplier_id, sender, recipient, sender_id, segments, body,
                               received_at)
SELECT organization_id, event_id, supplier_id, '+25884' || lpad((n % 10000000)::text, 7, '0'), '+258840000001',
       organization_id, 1, 'Yes, please', at
  FROM bench_ids WHERE n >= :amount * {1 - RECEIVED}
""",
    "inbound_messages": f"""
INSERT INTO inbound_messages (id, supplier_id, sender, recipient, body, raw, received_at, acknowledged, state, due_at,
                              organization_id, message_id)
SELECT event_id, supplier_id, '25884' || lpad((n % 10000000)::text, 7, '0'), '258840000001', 'Yes', 'Yes', at, true,
       CASE WHEN n % 100 = 1 THEN 'unassigned' ELSE 'received' END, NULL, organization_id, event_id
  FROM bench_ids WHERE n >= :amount * {1 - RECEIVED}
""",
    "inbox_threads": f"""
INSERT INTO inbox_threads (organization_id, id, channel, line_id, peer, message_id, heard_at)
SELECT organization_id, id, 'sms', organization_id, '+25884' || lpad((n % 10000000)::text, 7, '0'), event_id, at
  FROM bench_ids WHERE n >= :amount * {1 - RECEIVED}
""",
    "audit_log": f"""
INSERT INTO audit_log (id, organization_id, at, who, who_name, action, object_id, object_name)
SELECT event_id, organization_id, at, 'key', 'production', 'contact.change', id::text, 'Person ' || n
  FROM bench_ids WHERE n % {round(1 / AUDITED)} = 0
""",
    "findings": """
INSERT INTO findings (id, name, state, told, detail, since, over_at)
SELECT gen_random_uuid(), 'supplier supplier-' || n % 50, 'failed', '"supplier"', '"no session bound"', now() - at,
       CASE WHEN n > 5 THEN now() - at + interval '5 minutes' END
  FROM generate_series(1, 500) AS n, LATERAL (SELECT n * interval '1 hour' AS at) AS long
""",
    "database_sizes": """
INSERT INTO database_sizes (day, bytes, free)
SELECT (now() AT TIME ZONE 'UTC')::date - n, 100000000000 - n * 1000000000::bigint, 100000000000
  FROM generate_series(0, 60) AS n
""",
    "supplier_hours": """
INSERT INTO supplier_hours (supplier_id, hour, in_flight, room, answers)
SELECT suppliers.id, date_trunc('hour', now(), 'UTC') - n * interval '1 hour', 4000, 36000,
       array_fill(20::bigint, ARRAY[32])
  FROM suppliers, generate_series(0, 740) AS n
""",
    "web_processes": """
INSERT INTO web_processes (id, name, started_at, seen_at, version, memory, metrics, accepting)
SELECT gen_random_uuid(), 'web-' || n, now(), now() + interval '1 hour', '0.1.0', 100000000, '',
       array_fill(10::bigint, ARRAY[32])
  FROM generate_series(1, 8) AS n
""",
    "whatsapp_accounts": """
WITH app AS (
    INSERT INTO whatsapp_apps (id, app_id, secret, verify_token, created_at, changed_at)
    VALUES (gen_random_uuid(), '1', '\\x00', '\\x00', now(), now()) RETURNING id
)
INSERT INTO whatsapp_accounts (organization_id, id, app, waba_id, name, currency, portfolio, base_url, api_version,
                               token, mirror_at, created_at, changed_at)
SELECT organizations.id, organizations.id, app.id, right(organizations.id::text, 12), 'Account', 'EUR',
       right(organizations.id::text, 12), 'http://127.0.0.1:9', 'v23.0', '\\x00', now() + interval '1 day', now(), now()
  FROM organizations, app
 WHERE (organizations.id = :large OR right(organizations.id::text, 1) = '7')
""",
    "whatsapp_numbers": """
INSERT INTO whatsapp_numbers (organization_id, id, account_id, graph_id, display_phone_number, digits, created_at,
                              changed_at)
SELECT organization_id, organization_id, id, waba_id, '+258 84 000', waba_id, now(), now()
  FROM whatsapp_accounts
""",
    "whatsapp_conversations": f"""
INSERT INTO whatsapp_conversations (organization_id, id, number_id, recipient, opened_at, expires_at, last_inbound_at,
                                    created_at)
SELECT :large, ('00000000-0000-7000-b000-' || lpad(k::text, 12, '0'))::uuid, :large, '+25884' || lpad(k::text, 7, '0'),
       now() - interval '2 days', now() - interval '1 day', now() - interval '2 days', now() - interval '20 days'
  FROM generate_series(0, (:amount * {WHATSAPP} / 10)::int - 1) AS k
""",
    "whatsapp_messages": f"""
INSERT INTO whatsapp_messages (organization_id, id, direction, mode, status, number_id, conversation_id, recipient,
                               type, content, request_id, accepted_at, sent_at, delivered_at, read_at, event_id, charge)
SELECT :large, event_id, CASE WHEN k % 3 = 0 THEN 'inbound' ELSE 'outbound' END, 'live',
       CASE WHEN k % 3 = 0 THEN 'delivered' ELSE 'read' END, :large,
       ('00000000-0000-7000-b000-' || lpad(k::text, 12, '0'))::uuid, '+25884' || lpad(k::text, 7, '0'), 'text',
       '{{"text":"Hello"}}', hash, at, at, at, at, id, 'none'
  FROM (SELECT *, (n / 10) % greatest((:amount * {WHATSAPP} / 10)::int, 1) AS k FROM bench_ids
         WHERE n % {round(1 / WHATSAPP)} = 3) AS one
""",
}


TOKENS = """
UPDATE whatsapp_accounts SET token = made.token FROM unnest($1::uuid[], $2::bytea[]) AS made (id, token)
 WHERE whatsapp_accounts.id = made.id
"""
SECRET = "UPDATE webhook_endpoints SET secret = $2 WHERE organization_id = $1 AND id = $1"
#: The tables of THEN that contain rows needed by the stage itself.
KEPT = ("quotas", "webhook_endpoints", "audit_log", "whatsapp_accounts", "whatsapp_numbers")


async def organizations(conn: asyncpg.Connection[asyncpg.Record], large: UUID) -> None:
    """ORGANIZATIONS and SUPPLIERS, before messages are given to them."""
    async with conn.transaction():
        for statement in FIRST:
            await conn.execute(filled(statement, large))


async def hold(stage: Stage, amount: int) -> None:
    """Store everything else that comes with `amount` messages of `bench_ids`."""
    async with stage.connection() as conn:
        # Rows left by earlier parts of the measurement would be counted twice.
        emptied = ", ".join(name for name in THEN if name not in KEPT)
        await conn.execute(f"TRUNCATE {emptied} CASCADE")
        for name, statement in THEN.items():
            made = await conn.execute(filled(statement, stage.organization, amount), timeout=3600)
            stage.say(f"  {name}: {made}")
        await _seal(stage, conn)


async def _seal(stage: Stage, conn: asyncpg.Connection[asyncpg.Record]) -> None:
    """Seal the secrets that pages open as the product does, each for its own row."""
    key = stage.whatsapp_key
    for row in await conn.fetch("SELECT id FROM whatsapp_apps WHERE app_id = '1'"):
        place = f"whatsapp_apps/{row['id']}"
        sealed = [seal(key, b"secret", f"{place}/{name}") for name in ("secret", "verify_token")]
        await conn.execute("UPDATE whatsapp_apps SET secret = $2, verify_token = $3 WHERE id = $1", row["id"], *sealed)
    accounts = [row["id"] for row in await conn.fetch("SELECT id FROM whatsapp_accounts WHERE token = '\\x00'")]
    tokens = [seal(key, b"token", f"whatsapp_accounts/{id}/token") for id in accounts]
    await conn.execute(TOKENS, accounts, tokens)
    secret = seal(stage.webhook_key, new_secret().encode(), context(stage.organization, stage.organization))
    await conn.execute(SECRET, stage.organization, secret)


def filled(statement: str, large: UUID, amount: int = 0) -> str:
    """A statement with its values inserted."""
    # Both are our own values, so they may be part of the text; PostgreSQL refuses unused parameters.
    return statement.replace(":large", f"'{large}'::uuid").replace(":amount", str(amount))
