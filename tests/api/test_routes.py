"""The route table compared with the contract's."""

from __future__ import annotations

from heliograph.accounts.api_keys.scopes import SCOPES
from heliograph.api.door.operation import NONE, OPTIONAL, REQUIRED
from heliograph.api.routes import OPERATIONS

# Method, path, operationId, scope, success status, bucket, Idempotency-Key.
CONTRACT = {
    ("GET", "/", "getApiIndex", None, 200, None, NONE),
    ("GET", "/health", "getHealth", None, 200, None, NONE),
    ("GET", "/openapi.json", "getOpenApiDocument", None, 200, None, NONE),
    ("POST", "/sms/send", "sendSms", "sms:send", 202, "sms_send", REQUIRED),
    ("POST", "/sms/preview", "previewSms", "sms:read", 200, "reads", NONE),
    ("GET", "/sms/messages", "listSmsMessages", "sms:read", 200, "reads", NONE),
    ("GET", "/sms/messages/{messageId}", "getSmsMessage", "sms:read", 200, "reads", NONE),
    ("DELETE", "/sms/messages/{messageId}", "cancelSmsMessage", "sms:send", 200, "mutations", OPTIONAL),
    ("POST", "/sms/messages/{messageId}/converted", "convertSmsMessage", "sms:send", 200, "mutations", OPTIONAL),
    ("GET", "/sms/inbound", "listSmsInbound", "sms:read", 200, "reads", NONE),
    ("POST", "/whatsapp/messages", "sendWhatsAppMessage", "whatsapp:send", 202, "mutations", OPTIONAL),
    ("GET", "/whatsapp/messages", "listWhatsAppMessages", "whatsapp:read", 200, "reads", NONE),
    ("GET", "/whatsapp/messages/{messageId}", "getWhatsAppMessage", "whatsapp:read", 200, "reads", NONE),
    ("GET", "/whatsapp/templates", "listWhatsAppTemplates", "whatsapp:read", 200, "reads", NONE),
    ("GET", "/whatsapp/conversations", "listWhatsAppConversations", "whatsapp:read", 200, "reads", NONE),
    ("GET", "/whatsapp/phone-numbers", "getWhatsAppPhoneNumberHealth", "whatsapp:read", 200, "reads", NONE),
    ("GET", "/whatsapp/campaigns/{campaignId}", "getWhatsAppCampaignStatus", "whatsapp:read", 200, "reads", NONE),
    ("GET", "/whatsapp/wallet", "getWhatsAppWalletSummary", "whatsapp:read", 200, "reads", NONE),
    ("GET", "/account", "getAccountSummary", "account:read", 200, "reads", NONE),
    ("GET", "/account/settings", "getAccountSettings", "account:read", 200, "reads", NONE),
    ("PATCH", "/account/settings", "changeAccountSettings", "account:write", 200, "mutations", OPTIONAL),
    ("GET", "/notices", "listNotices", "account:read", 200, "reads", NONE),
    ("GET", "/exports", "listExports", "account:read", 200, "reads", NONE),
    ("POST", "/exports", "createExport", "account:read", 202, "mutations", OPTIONAL),
    ("GET", "/exports/{exportId}", "getExport", "account:read", 200, "reads", NONE),
    ("GET", "/exports/{exportId}/content", "getExportContent", "account:read", 200, "reads", NONE),
    ("DELETE", "/exports/{exportId}", "stopExport", "account:read", 200, "mutations", OPTIONAL),
    ("GET", "/sms/texts", "listSavedTexts", "sms:read", 200, "reads", NONE),
    ("POST", "/sms/texts", "saveText", "sms:send", 201, "mutations", OPTIONAL),
    ("PATCH", "/sms/texts/{textId}", "changeSavedText", "sms:send", 200, "mutations", OPTIONAL),
    ("DELETE", "/sms/texts/{textId}", "removeSavedText", "sms:send", 200, "mutations", OPTIONAL),
    ("GET", "/usage", "listUsage", "account:read", 200, "reads", NONE),
    ("GET", "/traffic", "getTraffic", "account:read", 200, "reads", NONE),
    ("GET", "/webhooks/catcher", "getCatcher", "webhooks:read", 200, "reads", NONE),
    ("POST", "/webhooks/catcher", "openCatcher", "webhooks:write", 201, "mutations", OPTIONAL),
    ("DELETE", "/webhooks/catcher", "closeCatcher", "webhooks:write", 200, "mutations", OPTIONAL),
    ("GET", "/requests", "listRequests", "webhooks:read", 200, "reads", NONE),
    ("GET", "/requests/{requestId}", "getRequest", "webhooks:read", 200, "reads", NONE),
    ("GET", "/sender-ids", "listSenderIds", "sender_ids:read", 200, "reads", NONE),
    ("POST", "/sender-ids", "createSenderIdRequest", "sender_ids:write", 201, "mutations", OPTIONAL),
    ("GET", "/api-keys", "listApiKeys", "api_keys:read", 200, "reads", NONE),
    ("POST", "/api-keys", "createApiKey", "api_keys:write", 201, "mutations", OPTIONAL),
    ("DELETE", "/api-keys/{apiKeyId}", "revokeApiKey", "api_keys:write", 200, "mutations", OPTIONAL),
    ("GET", "/contacts", "listContacts", "contacts:read", 200, "reads", NONE),
    ("POST", "/contacts", "createContact", "contacts:write", 200, "mutations", OPTIONAL),
    ("PATCH", "/contacts/{contactId}", "changeContact", "contacts:write", 200, "mutations", OPTIONAL),
    ("GET", "/opt-outs", "listOptOuts", "contacts:read", 200, "reads", NONE),
    ("POST", "/opt-outs", "addOptOut", "contacts:write", 201, "mutations", OPTIONAL),
    ("DELETE", "/opt-outs", "liftOptOut", "contacts:write", 200, "mutations", OPTIONAL),
    ("DELETE", "/contacts", "deleteContact", "contacts:write", 200, "mutations", OPTIONAL),
    ("GET", "/campaigns", "listCampaigns", "campaigns:read", 200, "reads", NONE),
    ("POST", "/campaigns", "createCampaign", "campaigns:write", 201, "campaigns", OPTIONAL),
    ("GET", "/campaigns/{campaignId}", "getCampaign", "campaigns:read", 200, "reads", NONE),
    ("POST", "/campaigns/{campaignId}/pause", "pauseCampaign", "campaigns:write", 200, "campaigns", OPTIONAL),
    ("POST", "/campaigns/{campaignId}/resume", "resumeCampaign", "campaigns:write", 200, "campaigns", OPTIONAL),
    ("DELETE", "/campaigns/{campaignId}", "cancelCampaign", "campaigns:write", 200, "campaigns", OPTIONAL),
    ("GET", "/webhooks", "listWebhooks", "webhooks:read", 200, "reads", NONE),
    ("POST", "/webhooks", "createWebhook", "webhooks:write", 201, "mutations", OPTIONAL),
    ("PATCH", "/webhooks/{webhookEndpointId}", "changeWebhook", "webhooks:write", 200, "mutations", OPTIONAL),
    ("DELETE", "/webhooks/{webhookEndpointId}", "disableWebhook", "webhooks:write", 200, "mutations", OPTIONAL),
    (
        "POST",
        "/webhooks/{webhookEndpointId}/rotate-secret",
        "rotateWebhookSecret",
        "webhooks:write",
        200,
        "mutations",
        OPTIONAL,
    ),
    ("GET", "/webhooks/{webhookEndpointId}/attempts", "listWebhookAttempts", "webhooks:read", 200, "reads", NONE),
    (
        "POST",
        "/webhooks/{webhookEndpointId}/resend",
        "resendWebhookEvent",
        "webhooks:write",
        202,
        "mutations",
        OPTIONAL,
    ),
    (
        "POST",
        "/webhooks/{webhookEndpointId}/replay",
        "replayWebhookEvents",
        "webhooks:write",
        202,
        "mutations",
        OPTIONAL,
    ),
    ("GET", "/webhooks/{webhookEndpointId}/replays", "listWebhookReplays", "webhooks:read", 200, "reads", NONE),
    ("POST", "/webhooks/{webhookEndpointId}/test", "testWebhook", "webhooks:write", 202, "mutations", OPTIONAL),
    ("GET", "/events", "listEvents", "webhooks:read", 200, "reads", NONE),
}


def test_every_operation_is_the_contracts() -> None:
    declared = {(o.method, o.path, o.id, o.scope, o.status, o.bucket, o.idempotency) for o in OPERATIONS}
    assert declared == CONTRACT


def test_no_operation_is_open_or_uncounted_by_accident() -> None:
    open_ones = {operation.path for operation in OPERATIONS if operation.scope is None}
    assert open_ones == {"/", "/health", "/openapi.json"}
    for operation in OPERATIONS:
        assert (operation.scope is None) == (operation.bucket is None)
        assert operation.scope is None or operation.scope in SCOPES
        assert operation.mutates == (operation.idempotency != NONE)


def test_names_and_places_are_unique() -> None:
    assert len({operation.id for operation in OPERATIONS}) == len(OPERATIONS)
    assert len({(operation.method, operation.path) for operation in OPERATIONS}) == len(OPERATIONS)


def test_answers_never_name_a_supplier() -> None:
    for operation in OPERATIONS:
        fields = set(operation.response.__struct_encode_fields__)
        assert not {field for field in fields if "supplier" in field.lower() or "cost" in field.lower()}
