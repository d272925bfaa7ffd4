"""The route table: one line per operation, a mirror of the contract's. A test keeps them in step.

Method, path, handler; then scope and rate bucket, where a key is needed; then whether an Idempotency-Key is REQUIRED.
Unless a line says otherwise, GET takes none and for everything else it is optional.
"""

from __future__ import annotations

from heliograph.api.door.operation import NONE, OPTIONAL, REQUIRED, Handler, Operation, described
from heliograph.api.operations import (
    account,
    api_keys,
    campaigns,
    catcher,
    contacts,
    developers,
    discovery,
    opt_outs,
    organization,
    sender_ids,
    sms,
    traffic,
    webhook_deliveries,
    webhooks,
    whatsapp,
)
from heliograph.sms.accepting.accept import BUCKET as SMS_SEND
from heliograph.whatsapp.accepting.accept import BUCKET as WHATSAPP_SEND

PREFIX = "/v1"

READS, MUTATIONS, CAMPAIGNS = "reads", "mutations", "campaigns"


def get(path: str, handler: Handler, scope: str | None = None, bucket: str | None = None) -> Operation:
    """A read. Without a scope, no key is needed."""
    return described("GET", path, handler, scope, bucket, NONE)


def post(path: str, handler: Handler, scope: str, bucket: str, idempotency: str = OPTIONAL) -> Operation:
    """A mutation, which takes an idempotency key, or requires one."""
    return described("POST", path, handler, scope, bucket, idempotency)


def patch(path: str, handler: Handler, scope: str, bucket: str) -> Operation:
    """A change of the given fields."""
    return described("PATCH", path, handler, scope, bucket, OPTIONAL)


def delete(path: str, handler: Handler, scope: str, bucket: str) -> Operation:
    """A deletion, or whatever ends a resource."""
    return described("DELETE", path, handler, scope, bucket, OPTIONAL)


OPERATIONS: tuple[Operation, ...] = (
    get("/", discovery.get_api_index),
    get("/health", discovery.get_health),
    get("/openapi.json", discovery.get_open_api_document),
    post("/sms/send", sms.send.send_sms, "sms:send", SMS_SEND, REQUIRED),
    post("/sms/preview", sms.send.preview_sms, "sms:read", READS, NONE),
    get("/sms/messages", sms.messages.list_sms_messages, "sms:read", READS),
    get("/sms/messages/{messageId}", sms.messages.get_sms_message, "sms:read", READS),
    delete("/sms/messages/{messageId}", sms.messages.cancel_sms_message, "sms:send", MUTATIONS),
    post("/sms/messages/{messageId}/converted", sms.messages.convert_sms_message, "sms:send", MUTATIONS),
    get("/sms/texts", sms.texts.list_saved_texts, "sms:read", READS),
    post("/sms/texts", sms.texts.save_text, "sms:send", MUTATIONS),
    patch("/sms/texts/{textId}", sms.texts.change_saved_text, "sms:send", MUTATIONS),
    delete("/sms/texts/{textId}", sms.texts.remove_saved_text, "sms:send", MUTATIONS),
    get("/sms/inbound", sms.inbound.list_sms_inbound, "sms:read", READS),
    post("/whatsapp/messages", whatsapp.send.send_whatsapp_message, "whatsapp:send", WHATSAPP_SEND),
    get("/whatsapp/messages", whatsapp.messages.list_whatsapp_messages, "whatsapp:read", READS),
    get("/whatsapp/messages/{messageId}", whatsapp.messages.get_whatsapp_message, "whatsapp:read", READS),
    get("/whatsapp/templates", whatsapp.reads.list_whatsapp_templates, "whatsapp:read", READS),
    get("/whatsapp/conversations", whatsapp.messages.list_whatsapp_conversations, "whatsapp:read", READS),
    get("/whatsapp/phone-numbers", whatsapp.reads.get_whatsapp_phone_number_health, "whatsapp:read", READS),
    get("/whatsapp/campaigns/{campaignId}", whatsapp.campaigns.get_whatsapp_campaign_status, "whatsapp:read", READS),
    get("/whatsapp/wallet", whatsapp.reads.get_whatsapp_wallet_summary, "whatsapp:read", READS),
    get("/account", account.get_account_summary, "account:read", READS),
    get("/account/settings", organization.settings.get_account_settings, "account:read", READS),
    patch("/account/settings", organization.settings.change_account_settings, "account:write", MUTATIONS),
    get("/notices", organization.notices.list_notices, "account:read", READS),
    get("/exports", organization.exports.list_exports, "account:read", READS),
    post("/exports", organization.exports.create_export, "account:read", MUTATIONS),
    get("/exports/{exportId}", organization.exports.get_export, "account:read", READS),
    get("/exports/{exportId}/content", organization.exports.get_export_content, "account:read", READS),
    delete("/exports/{exportId}", organization.exports.stop_export, "account:read", MUTATIONS),
    get("/usage", account.list_usage, "account:read", READS),
    get("/traffic", traffic.get_traffic, "account:read", READS),
    get("/sender-ids", sender_ids.list_sender_ids, "sender_ids:read", READS),
    post("/sender-ids", sender_ids.create_sender_id_request, "sender_ids:write", MUTATIONS),
    get("/api-keys", api_keys.list_api_keys, "api_keys:read", READS),
    post("/api-keys", api_keys.create_api_key, "api_keys:write", MUTATIONS),
    delete("/api-keys/{apiKeyId}", api_keys.revoke_api_key, "api_keys:write", MUTATIONS),
    get("/contacts", contacts.list_contacts, "contacts:read", READS),
    post("/contacts", contacts.create_contact, "contacts:write", MUTATIONS),
    patch("/contacts/{contactId}", contacts.change_contact, "contacts:write", MUTATIONS),
    delete("/contacts", contacts.delete_contact, "contacts:write", MUTATIONS),
    get("/opt-outs", opt_outs.list_opt_outs, "contacts:read", READS),
    post("/opt-outs", opt_outs.add_opt_out, "contacts:write", MUTATIONS),
    delete("/opt-outs", opt_outs.lift_opt_out, "contacts:write", MUTATIONS),
    get("/campaigns", campaigns.list_campaigns, "campaigns:read", READS),
    post("/campaigns", campaigns.create_campaign, "campaigns:write", CAMPAIGNS),
    get("/campaigns/{campaignId}", campaigns.get_campaign, "campaigns:read", READS),
    post("/campaigns/{campaignId}/pause", campaigns.pause_campaign, "campaigns:write", CAMPAIGNS),
    post("/campaigns/{campaignId}/resume", campaigns.resume_campaign, "campaigns:write", CAMPAIGNS),
    delete("/campaigns/{campaignId}", campaigns.cancel_campaign, "campaigns:write", CAMPAIGNS),
    get("/webhooks", webhooks.list_webhooks, "webhooks:read", READS),
    post("/webhooks", webhooks.create_webhook, "webhooks:write", MUTATIONS),
    patch("/webhooks/{webhookEndpointId}", webhooks.change_webhook, "webhooks:write", MUTATIONS),
    delete("/webhooks/{webhookEndpointId}", webhooks.disable_webhook, "webhooks:write", MUTATIONS),
    post("/webhooks/{webhookEndpointId}/rotate-secret", webhooks.rotate_webhook_secret, "webhooks:write", MUTATIONS),
    get("/webhooks/{webhookEndpointId}/attempts", webhook_deliveries.list_webhook_attempts, "webhooks:read", READS),
    post("/webhooks/{webhookEndpointId}/resend", webhook_deliveries.resend_webhook_event, "webhooks:write", MUTATIONS),
    post("/webhooks/{webhookEndpointId}/replay", webhook_deliveries.replay_webhook_events, "webhooks:write", MUTATIONS),
    get("/webhooks/{webhookEndpointId}/replays", webhook_deliveries.list_webhook_replays, "webhooks:read", READS),
    post("/webhooks/{webhookEndpointId}/test", webhook_deliveries.test_webhook, "webhooks:write", MUTATIONS),
    get("/webhooks/catcher", catcher.get_catcher, "webhooks:read", READS),
    post("/webhooks/catcher", catcher.open_catcher, "webhooks:write", MUTATIONS),
    delete("/webhooks/catcher", catcher.close_catcher, "webhooks:write", MUTATIONS),
    get("/events", developers.events.list_events, "webhooks:read", READS),
    get("/requests", developers.requests.list_requests, "webhooks:read", READS),
    get("/requests/{requestId}", developers.requests.get_request, "webhooks:read", READS),
)
