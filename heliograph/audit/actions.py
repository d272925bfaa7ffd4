"""What the audit log tells of: every action, one line each. A test holds the list to the code, the command line and
the API, so that no change goes unrecorded.

An action is named by its object and what was done to it; the part before the dot is the kind of object.
"""

from __future__ import annotations

#: Every action, and what it says to a reader.
ACTIONS = {
    "organization.created": "Organization created",
    "organization.renamed": "Organization renamed",
    "organization.state_changed": "Commercial state changed",
    "organization.configured": "Settings changed",
    "organization.plan_changed": "Plan changed",
    "organization.period_begun": "New period of the plan begun",
    "quota.changed": "Quota granted or adjusted",
    "wallet.changed": "Wallet topped up or adjusted",
    "rates.imported": "Rates imported",
    "api_key.created": "API key created",
    "api_key.suspended": "API key suspended",
    "api_key.resumed": "API key resumed",
    "api_key.revoked": "API key revoked",
    "authentication.failed": "Authentication failed",
    "sender_id.requested": "Sender ID requested",
    "sender_id.reviewed": "Sender ID approved, rejected or suspended",
    "sender_id.default_changed": "Default sender ID changed",
    "supplier.added": "Supplier added",
    "supplier.changed": "Supplier changed",
    "supplier.state_changed": "Supplier paused, resumed or removed",
    "queue.held": "Work held",
    "queue.released": "Held work released",
    "queue.withdrawn": "Work withdrawn",
    "campaign.created": "Campaign created",
    "campaign.moved": "Campaign paused, resumed, canceled or ended",
    "contact.created": "Contact created",
    "contact.deleted": "Contact deleted",
    "contacts.imported": "Contacts imported",
    "contacts.import_undone": "Import of contacts undone",
    "contacts.exported": "Contacts exported",
    "person.erased": "Person erased",
    "opt_out.added": "Opt-out added",
    "opt_out.lifted": "Opt-out lifted",
    "message.revealed": "Message text and number revealed",
    "webhook.created": "Webhook endpoint created",
    "webhook.disabled": "Webhook endpoint disabled",
    "webhook.secret_rotated": "Webhook secret rotated",
    "webhook.replayed": "Webhook events replayed",
    "whatsapp_app.changed": "WhatsApp app changed",
    "whatsapp_account.added": "WhatsApp account added",
    "whatsapp_account.changed": "WhatsApp account changed",
    "whatsapp_account.state_changed": "WhatsApp account paused, resumed or removed",
    "whatsapp_account.released": "Hold of a WhatsApp account released",
    "whatsapp_account.acknowledged": "Warnings about a WhatsApp account acknowledged",
    "whatsapp_number.released": "Hold of a WhatsApp number released",
    "whatsapp_template.changed": "WhatsApp template enabled or disabled",
    "audit.exported": "Audit log exported",
}
