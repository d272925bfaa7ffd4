"""Why a running campaign makes no progress: what its staged messages are waiting for.

Staging stops by itself when nothing can be sent, and the campaign is paused with a reason. But messages that are
already staged wait in the queue without any visible reason.
"""

from __future__ import annotations

from heliograph.suppliers.slots import IS_HELD

#: The reasons, in the order in which they are checked.
REASONS = (
    "organization_suspended",
    "whatsapp_account_paused",
    "held_by_operator",
    "whatsapp_number_held",
    "whatsapp_template_not_approved",
    "whatsapp_template_not_utility",
    "whatsapp_template_unconfirmed",
    "whatsapp_messaging_limit_reached",
    "no_supplier_connected",
    "quiet_hours",
)
#: One of the next messages of the organization's campaigns belongs to this one, and waits for the end of quiet hours.
#: Examines only a few: there may be a million.
QUIET = """
SELECT FROM (SELECT organization_id, id FROM queue
              WHERE kind = 'sms' AND line = '00000000-0000-0000-0000-000000000000' AND lane = 1
                AND queue.organization_id = campaigns.organization_id AND coalesce(since, due_at) > now()
              ORDER BY coalesce(since, due_at) LIMIT 50) next
       JOIN LATERAL (SELECT campaign_id, quiet_until FROM messages
                      WHERE organization_id = next.organization_id AND id = next.id LIMIT 1) m
         ON m.campaign_id = campaigns.id AND m.quiet_until > now()
"""
#: As `whatsapp.mirror.warnings.REPLIES_ONLY`, which commands that show progress do not load.
REPLIES_ONLY = """
(SELECT max(w.ends_at) FROM whatsapp_warnings w
  WHERE w.organization_id = a.organization_id AND w.account_id = a.id AND n.connection_status = 'restricted'
    AND w.kind = 'restriction' AND starts_with(w.detail, 'RESTRICTED_BIZ_INITIATED_MESSAGING')
    AND w.over_at IS NULL AND (w.ends_at IS NULL OR w.ends_at > now()))
"""
#: For a query on `campaigns`: what prevents the queued messages of a running campaign from being sent; NULL: nothing
#: known. A test campaign needs no supplier.
WHY = f"""
CASE WHEN status <> 'running' OR queued = 0 THEN NULL
     WHEN channel = 'sms' THEN (
    SELECT CASE WHEN o.state IN ('suspended', 'closed') THEN 'organization_suspended'
                WHEN EXISTS (SELECT FROM queue_holds h
                              WHERE h.kind = 'sms' AND h.line IS NULL AND h.before_id IS NULL
                                AND (h.organization_id IS NULL OR h.organization_id = o.id))
                THEN 'held_by_operator'
                WHEN mode = 'live' AND NOT EXISTS (
                     SELECT FROM suppliers s JOIN supplier_sessions x ON x.supplier_id = s.id
                      WHERE s.state = 'active' AND x.bound AND {IS_HELD})
                THEN 'no_supplier_connected'
                WHEN mode = 'live' AND EXISTS ({QUIET}) THEN 'quiet_hours' END
      FROM organizations o WHERE o.id = campaigns.organization_id)
     ELSE (
    SELECT CASE WHEN o.state IN ('suspended', 'closed') THEN 'organization_suspended'
                WHEN a.state = 'paused' THEN 'whatsapp_account_paused'
                WHEN EXISTS (SELECT FROM queue_holds h
                              WHERE h.kind = 'whatsapp' AND (h.line IS NULL OR h.line = n.id) AND h.before_id IS NULL
                                AND (h.organization_id IS NULL OR h.organization_id = n.organization_id))
                THEN 'held_by_operator'
                WHEN a.held_until IS NOT NULL OR n.held_until IS NOT NULL OR {REPLIES_ONLY} IS NOT NULL
                THEN 'whatsapp_number_held'
                WHEN t.status IN ('paused', 'pending', 'in_appeal') THEN 'whatsapp_template_not_approved'
                WHEN t.category <> 'utility' THEN 'whatsapp_template_not_utility'
                WHEN t.missing_at IS NOT NULL THEN 'whatsapp_template_unconfirmed'
                WHEN p.users >= n.messaging_limit THEN 'whatsapp_messaging_limit_reached' END
      FROM whatsapp_numbers n
           JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
           JOIN organizations o ON o.id = n.organization_id
           LEFT JOIN whatsapp_templates t
                  ON t.organization_id = n.organization_id AND t.id = campaigns.template_id
           LEFT JOIN whatsapp_portfolios p ON p.portfolio = a.portfolio
     WHERE n.organization_id = campaigns.organization_id AND n.id = campaigns.number_id) END
"""
