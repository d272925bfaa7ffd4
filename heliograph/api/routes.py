"""The route table: one line an operation, a mirror of the contract's table. A test holds them together."""

from __future__ import annotations

from heliograph.accounts.api_keys import LiveKeyRequired, TooManyActiveKeys
from heliograph.accounts.organizations import DestinationNotAllowed, OrganizationSuspended
from heliograph.api import (
    account,
    api_keys,
    campaigns,
    contacts,
    deliveries,
    discovery,
    events,
    messages,
    sender_ids,
    sms,
    webhooks,
    whatsapp,
    whatsapp_campaigns,
    whatsapp_messages,
    whatsapp_reads,
)
from heliograph.api.operation import OPTIONAL, REQUIRED, Operation
from heliograph.api.paging import PageQuery
from heliograph.base.errors import NotFound
from heliograph.campaigns.plan import CampaignAudienceEmpty, CampaignNotCancelable
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.contacts.records import ContactAlreadyExists
from heliograph.sms import accept
from heliograph.sms.messages import MessageNotCancelable
from heliograph.sms.sender_ids import SenderIdAlreadyExists, SenderIdNotApproved, TooManyPending
from heliograph.webhooks.endpoints import EndpointDisabled, TooManyEndpoints
from heliograph.webhooks.replays import ReplayRunning
from heliograph.whatsapp import accept as whatsapp_accept
from heliograph.whatsapp.numbers import PhoneNumberUnavailable
from heliograph.whatsapp.templates import (
    TemplateNotApproved,
    TemplateNotFound,
    TemplateNotSendable,
    TemplateParameterMismatch,
)
from heliograph.whatsapp.wallet import WalletInsufficientFunds

PREFIX = "/v1"

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/",
        id="getApiIndex",
        summary="Version and addresses",
        response=discovery.ApiIndex,
        handler=discovery.get_index,
    ),
    Operation(
        method="GET",
        path="/health",
        id="getHealth",
        summary="Health snapshot",
        response=discovery.Health,
        is_probe=True,
        handler=discovery.get_health,
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        id="getOpenApiDocument",
        summary="This document",
        response=discovery.OpenApiDocument,
        handler=discovery.get_openapi_document,
    ),
    Operation(
        method="POST",
        path="/sms/send",
        id="sendSms",
        summary="Send an SMS",
        scope="sms:send",
        bucket=accept.BUCKET,
        idempotency=REQUIRED,
        status=202,
        request=sms.SendSms,
        response=sms.SmsAccepted,
        refusals=(
            OrganizationSuspended,
            DestinationNotAllowed,
            RecipientOptedOut,
            SenderIdNotApproved,
            accept.QuotaExceeded,
        ),
        own_commit=True,
        handler=sms.send_sms,
        description=(
            "The message is stored and queued; delivery is reported by events. The same `Idempotency-Key` and payload "
            "give the first answer again, byte for byte."
        ),
        example={"to": "+258841234567", "message": "Your code is 123456", "clientReference": "order-1"},
    ),
    Operation(
        method="POST",
        path="/sms/preview",
        id="previewSms",
        summary="See what a send would do",
        scope="sms:read",
        bucket="reads",
        asks=True,
        request=sms.SendSms,
        response=sms.SmsPreviewed,
        refusals=(
            OrganizationSuspended,
            DestinationNotAllowed,
            RecipientOptedOut,
            SenderIdNotApproved,
            accept.QuotaExceeded,
        ),
        handler=sms.preview_sms,
        description=(
            "Takes the body of a send and says how it would be encoded, cut and paid for, or refuses it as the send "
            "would be refused. Nothing is stored."
        ),
        example={"to": "+258841234567", "message": "Your code is 123456"},
    ),
    Operation(
        method="GET",
        path="/sms/messages",
        id="listSmsMessages",
        summary="List messages",
        scope="sms:read",
        bucket="reads",
        query=messages.MessageQuery,
        response=messages.SmsMessageList,
        handler=messages.list_messages,
        description=(
            "Newest first. One page is looked for among 20,000 messages at most: with filters it may hold fewer than "
            "asked for, or none, while `hasMore` is true; `nextCursor` then goes on from there. Give `dateFrom` and "
            "`dateTo` to look in the right place at once."
        ),
    ),
    Operation(
        method="GET",
        path="/sms/messages/{messageId}",
        id="getSmsMessage",
        summary="Read a message and what happened to it",
        scope="sms:read",
        bucket="reads",
        response=messages.SmsMessageRead,
        handler=messages.get_message,
    ),
    Operation(
        method="DELETE",
        path="/sms/messages/{messageId}",
        id="cancelSmsMessage",
        summary="Cancel a message",
        scope="sms:send",
        bucket="mutations",
        idempotency=OPTIONAL,
        response=messages.SmsCanceled,
        refusals=(MessageNotCancelable,),
        handler=messages.cancel_message,
        description=(
            "Works as long as no supplier has it: while it waits for its time or for its turn. Its unit of quota comes "
            "back. Canceling again answers the same."
        ),
    ),
    Operation(
        method="POST",
        path="/whatsapp/messages",
        id="sendWhatsAppMessage",
        summary="Send a WhatsApp message",
        scope="whatsapp:send",
        bucket=whatsapp_accept.BUCKET,
        idempotency=OPTIONAL,
        status=202,
        request=whatsapp.SendWhatsAppMessage,
        response=whatsapp.WhatsAppAccepted,
        refusals=(
            TemplateNotFound,
            TemplateParameterMismatch,
            DestinationNotAllowed,
            RecipientOptedOut,
            PhoneNumberUnavailable,
            TemplateNotSendable,
            TemplateNotApproved,
            whatsapp_accept.WindowClosed,
            WalletInsufficientFunds,
        ),
        own_commit=True,
        handler=whatsapp.send_whatsapp_message,
        description=(
            "An approved utility or authentication template at any time, or a text in reply to a user who wrote within "
            "the last day. Its price is reserved in the wallet, and taken when it is delivered."
        ),
        example={
            "type": "template",
            "to": "+258841234567",
            "phoneNumberId": "019c8f64-1f0a-7d52-8c3b-5a9e2d7f6b10",
            "template": {
                "name": "order_shipped",
                "language": "en",
                "category": "utility",
                "parameters": ["Ana", "1001"],
            },
            "clientReference": "order-1001",
        },
    ),
    Operation(
        method="GET",
        path="/whatsapp/messages",
        id="listWhatsAppMessages",
        summary="List WhatsApp messages",
        scope="whatsapp:read",
        bucket="reads",
        query=whatsapp_messages.WhatsAppMessageQuery,
        response=whatsapp_messages.WhatsAppMessageList,
        handler=whatsapp_messages.list_messages,
        description=(
            "What was sent and what came in, newest first; `dateFrom` and `dateTo` are of `acceptedAt`. One page is "
            "looked for among 20,000 messages at most (with `recipient`, of that user's): with filters it may hold "
            "fewer than asked for, or none, while `hasMore` is true; `nextCursor` then goes on from there. A live key "
            "sees live messages, a test key what test keys sent."
        ),
    ),
    Operation(
        method="GET",
        path="/whatsapp/messages/{messageId}",
        id="getWhatsAppMessage",
        summary="Read a WhatsApp message",
        scope="whatsapp:read",
        bucket="reads",
        response=whatsapp_messages.WhatsAppMessageRead,
        handler=whatsapp_messages.get_message,
        description="Where a message stands, with the time of each step, and why it failed if it did.",
    ),
    Operation(
        method="GET",
        path="/whatsapp/templates",
        id="listWhatsAppTemplates",
        summary="List WhatsApp templates",
        scope="whatsapp:read",
        bucket="reads",
        query=whatsapp_reads.WhatsAppTemplateQuery,
        response=whatsapp_reads.WhatsAppTemplateList,
        handler=whatsapp_reads.list_templates,
        description=(
            "Newest first; `dateFrom` and `dateTo` are of `updatedAt`. A template has an entry for each language. "
            "Those that this service's operator took out of use are not listed, and cannot be sent. "
            "`whatsapp.template.updated` tells of changes."
        ),
    ),
    Operation(
        method="GET",
        path="/whatsapp/conversations",
        id="listWhatsAppConversations",
        summary="List WhatsApp conversations",
        scope="whatsapp:read",
        bucket="reads",
        query=whatsapp_messages.WhatsAppConversationQuery,
        response=whatsapp_messages.WhatsAppConversationList,
        handler=whatsapp_messages.list_conversations,
        description=(
            "One for each of your numbers and each user that it wrote to or heard from, the one that began last first; "
            "`dateFrom` and `dateTo` are of the last message in either direction. With filters a page may hold fewer "
            "than asked for, or none, while `hasMore` is true: `nextCursor` goes on from there. A test key "
            "has conversations of its own, which are always open."
        ),
    ),
    Operation(
        method="GET",
        path="/whatsapp/phone-numbers",
        id="getWhatsAppPhoneNumberHealth",
        summary="Show the health of WhatsApp numbers",
        scope="whatsapp:read",
        bucket="reads",
        response=whatsapp_reads.WhatsAppPhoneNumberHealth,
        handler=whatsapp_reads.list_phone_numbers,
        description=(
            "All numbers, oldest first: connection, quality, messaging limit and credential. "
            "`whatsapp.phone_number.updated` tells of changes."
        ),
    ),
    Operation(
        method="GET",
        path="/whatsapp/campaigns/{campaignId}",
        id="getWhatsAppCampaignStatus",
        summary="Show how a WhatsApp campaign goes",
        scope="whatsapp:read",
        bucket="reads",
        response=whatsapp_campaigns.WhatsAppCampaignRead,
        handler=whatsapp_campaigns.get_campaign,
        description=(
            "`counts` are disjoint and add up to `total`; they follow the messages by a second or a few. "
            "`campaign.completed` tells of the end."
        ),
    ),
    Operation(
        method="GET",
        path="/whatsapp/wallet",
        id="getWhatsAppWalletSummary",
        summary="Show the WhatsApp wallet",
        scope="whatsapp:read",
        bucket="reads",
        response=whatsapp_reads.WhatsAppWalletSummary,
        handler=whatsapp_reads.get_wallet,
        description=(
            "A message's price is reserved when it is accepted, spent when it is delivered, and released when it "
            "fails. `total` is `available` + `reserved` + `consumed`, at every moment."
        ),
    ),
    Operation(
        method="GET",
        path="/account",
        id="getAccountSummary",
        summary="State, subscription and quota",
        scope="account:read",
        bucket="reads",
        response=account.AccountSummary,
        handler=account.get_account_summary,
    ),
    Operation(
        method="GET",
        path="/usage",
        id="listUsage",
        summary="List the usage ledger",
        scope="account:read",
        bucket="reads",
        query=account.UsageQuery,
        response=account.UsageList,
        handler=account.list_usage,
        description="Every change of the quota, newest first: messages, grants, adjustments and refunds.",
    ),
    Operation(
        method="GET",
        path="/sender-ids",
        id="listSenderIds",
        summary="List sender IDs",
        scope="sender_ids:read",
        bucket="reads",
        response=sender_ids.SenderIdList,
        handler=sender_ids.list_sender_ids,
    ),
    Operation(
        method="POST",
        path="/sender-ids",
        id="createSenderIdRequest",
        summary="Request a sender ID",
        scope="sender_ids:write",
        live_only=True,
        bucket="mutations",
        idempotency=OPTIONAL,
        status=201,
        request=sender_ids.CreateSenderIdRequest,
        canonical=sender_ids.canonical,
        response=sender_ids.SenderIdRequested,
        refusals=(LiveKeyRequired, SenderIdAlreadyExists, TooManyPending),
        handler=sender_ids.create_sender_id_request,
        description=(
            "A new or rejected value becomes pending; one that is pending stays as it is. Operators decide, and "
            "`sender_id.approved` or `sender_id.rejected` says what."
        ),
        example={"value": "ACME"},
    ),
    Operation(
        method="GET",
        path="/api-keys",
        id="listApiKeys",
        summary="List API keys",
        scope="api_keys:read",
        bucket="reads",
        response=api_keys.ApiKeyList,
        handler=api_keys.list_api_keys,
    ),
    Operation(
        method="POST",
        path="/api-keys",
        id="createApiKey",
        summary="Create an API key",
        scope="api_keys:write",
        bucket="mutations",
        idempotency=OPTIONAL,
        status=201,
        request=api_keys.CreateApiKey,
        canonical=api_keys.canonical,
        response=api_keys.ApiKeyCreated,
        refusals=(LiveKeyRequired, TooManyActiveKeys),
        has_secret=True,
        handler=api_keys.create_api_key,
        description="The secret is shown here and never again. A key grants only scopes that it holds itself.",
        example={"name": "web shop", "profile": "sms_only"},
    ),
    Operation(
        method="DELETE",
        path="/api-keys/{apiKeyId}",
        id="revokeApiKey",
        summary="Revoke an API key",
        scope="api_keys:write",
        bucket="mutations",
        idempotency=OPTIONAL,
        response=api_keys.ApiKeyRevoked,
        handler=api_keys.revoke_api_key,
        description="For good, and on every process within one second. A second time changes nothing.",
    ),
    Operation(
        method="GET",
        path="/contacts",
        id="listContacts",
        summary="List contacts",
        scope="contacts:read",
        bucket="reads",
        query=contacts.ContactQuery,
        response=contacts.ContactList,
        handler=contacts.list_contacts,
    ),
    Operation(
        method="POST",
        path="/contacts",
        id="createContact",
        summary="Create a contact",
        scope="contacts:write",
        bucket="mutations",
        idempotency=OPTIONAL,
        request=contacts.CreateContact,
        canonical=contacts.canonical,
        response=contacts.ContactCreated,
        refusals=(ContactAlreadyExists,),
        handler=contacts.create_contact,
        description=(
            "Either `name` and `phone`, or `firstName`, `lastName` and `phoneNumber`; what is given twice must agree. "
            "A number has one contact."
        ),
        example={"name": "Ana Silva", "phone": "+258841234567", "tags": ["vip", "maputo"]},
    ),
    Operation(
        method="DELETE",
        path="/contacts",
        id="deleteContact",
        summary="Delete a contact",
        scope="contacts:write",
        bucket="mutations",
        idempotency=OPTIONAL,
        query=contacts.WhichContact,
        response=contacts.ContactDeleted,
        refusals=(NotFound,),
        handler=contacts.delete_contact,
    ),
    Operation(
        method="GET",
        path="/campaigns",
        id="listCampaigns",
        summary="List campaigns",
        scope="campaigns:read",
        bucket="reads",
        query=PageQuery,
        response=campaigns.CampaignList,
        handler=campaigns.list_campaigns,
    ),
    Operation(
        method="POST",
        path="/campaigns",
        id="createCampaign",
        summary="Create a campaign",
        scope="campaigns:write",
        bucket="campaigns",
        idempotency=OPTIONAL,
        status=201,
        request=campaigns.CreateCampaign,
        canonical=campaigns.canonical,
        response=campaigns.CampaignAnswer,
        refusals=(SenderIdNotApproved, CampaignAudienceEmpty),
        handler=campaigns.create_campaign,
        description=(
            "One text to many recipients, at once or at a set time: to contacts by tag, or to a list of numbers. "
            "Everybody gets it once; who opted out gets none. When the quota runs out it waits for more."
        ),
        example={
            "name": "Spring sale",
            "message_template": "Hello {{name}}, 20 % off until Friday.",
            "audience_tags": ["customers", "maputo"],
            "audience_tag_match_mode": "all",
        },
    ),
    Operation(
        method="GET",
        path="/campaigns/{campaignId}",
        id="getCampaign",
        summary="Show a campaign",
        scope="campaigns:read",
        bucket="reads",
        response=campaigns.CampaignAnswer,
        handler=campaigns.get_campaign,
    ),
    Operation(
        method="DELETE",
        path="/campaigns/{campaignId}",
        id="cancelCampaign",
        summary="Cancel a campaign",
        scope="campaigns:write",
        bucket="campaigns",
        idempotency=OPTIONAL,
        response=campaigns.CampaignAnswer,
        refusals=(CampaignNotCancelable,),
        handler=campaigns.cancel_campaign,
        description=(
            "Nothing more is staged from this answer on. What no supplier has yet is canceled in the following "
            "seconds, and its quota comes back."
        ),
    ),
    Operation(
        method="GET",
        path="/webhooks",
        id="listWebhooks",
        summary="List webhook endpoints",
        scope="webhooks:read",
        bucket="reads",
        response=webhooks.WebhookList,
        handler=webhooks.list_webhooks,
    ),
    Operation(
        method="POST",
        path="/webhooks",
        id="createWebhook",
        summary="Register a webhook endpoint",
        scope="webhooks:write",
        bucket="mutations",
        idempotency=OPTIONAL,
        status=201,
        request=webhooks.CreateWebhook,
        canonical=webhooks.canonical,
        response=webhooks.WebhookCreated,
        refusals=(TooManyEndpoints,),
        has_secret=True,
        handler=webhooks.create_webhook,
        example={"url": "https://example.com/hooks", "subscribed_events": ["message.delivered", "message.failed"]},
    ),
    Operation(
        method="DELETE",
        path="/webhooks/{webhookEndpointId}",
        id="disableWebhook",
        summary="Disable a webhook endpoint",
        scope="webhooks:write",
        bucket="mutations",
        idempotency=OPTIONAL,
        response=webhooks.WebhookDisabled,
        handler=webhooks.disable_webhook,
    ),
    Operation(
        method="POST",
        path="/webhooks/{webhookEndpointId}/rotate-secret",
        id="rotateWebhookSecret",
        summary="Replace a webhook endpoint's secret",
        scope="webhooks:write",
        bucket="mutations",
        idempotency=OPTIONAL,
        response=webhooks.WebhookSecretRotated,
        refusals=(EndpointDisabled,),
        has_secret=True,
        handler=webhooks.rotate_secret,
        description=(
            "For 24 hours the old secret signs too: `webhook-signature` holds a signature of each, "
            "`x-service-signature` that of the new one."
        ),
    ),
    Operation(
        method="GET",
        path="/webhooks/{webhookEndpointId}/attempts",
        id="listWebhookAttempts",
        summary="List attempts to deliver to an endpoint",
        scope="webhooks:read",
        bucket="reads",
        query=PageQuery,
        response=deliveries.WebhookAttemptList,
        handler=deliveries.list_attempts,
        description="Newest first. Attempts are kept for 30 days.",
    ),
    Operation(
        method="POST",
        path="/webhooks/{webhookEndpointId}/resend",
        id="resendWebhookEvent",
        summary="Deliver one event again",
        scope="webhooks:write",
        bucket="mutations",
        idempotency=OPTIONAL,
        status=202,
        request=deliveries.ResendEvent,
        response=deliveries.WebhookQueued,
        refusals=(EndpointDisabled,),
        handler=deliveries.resend,
        description="The event keeps its id and is tried as a new one is. Its kind need not be subscribed to.",
        example={"event_id": "019c8f5e-6f1a-7c33-9d05-0b7c2f6a1e44"},
    ),
    Operation(
        method="POST",
        path="/webhooks/{webhookEndpointId}/replay",
        id="replayWebhookEvents",
        summary="Deliver a range of time again",
        scope="webhooks:write",
        bucket="mutations",
        idempotency=OPTIONAL,
        status=202,
        request=deliveries.ReplayEvents,
        response=deliveries.WebhookReplayStarted,
        refusals=(EndpointDisabled, ReplayRunning),
        handler=deliveries.replay,
        description=(
            "Goes on in the background, behind what happens meanwhile, and never faster than the endpoint answers. "
            "Events keep their ids. An endpoint has one replay at a time."
        ),
        example={"from": "2026-03-01T00:00:00Z", "to": "2026-03-02T00:00:00Z", "only_failed": True},
    ),
    Operation(
        method="GET",
        path="/webhooks/{webhookEndpointId}/replays",
        id="listWebhookReplays",
        summary="List an endpoint's replays",
        scope="webhooks:read",
        bucket="reads",
        query=PageQuery,
        response=deliveries.WebhookReplayList,
        handler=deliveries.list_replays,
        description="Newest first, with how far each has come.",
    ),
    Operation(
        method="POST",
        path="/webhooks/{webhookEndpointId}/test",
        id="testWebhook",
        summary="Deliver an example",
        scope="webhooks:write",
        bucket="mutations",
        idempotency=OPTIONAL,
        status=202,
        response=deliveries.WebhookQueued,
        refusals=(EndpointDisabled,),
        handler=deliveries.send_example,
        description="A `webhook.test` event goes to this endpoint alone, whether it subscribed to that kind or not.",
    ),
    Operation(
        method="GET",
        path="/events",
        id="listEvents",
        summary="Fetch events",
        scope="webhooks:read",
        bucket="reads",
        query=events.EventQuery,
        response=events.EventList,
        handler=events.list_events,
        description=(
            "Oldest first, for those who fetch what they missed. `nextCursor` is always there: keep it, and ask with "
            "it again later. An event appears some three seconds after it happened, and none is ever passed over. "
            "`dateFrom` and `dateTo` are of the time when it was recorded. A page may be short, or empty, while "
            "`hasMore` is true."
        ),
    ),
)
