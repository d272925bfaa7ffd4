"""The route table: one line an operation, a mirror of the contract's table. A test holds them together."""

from __future__ import annotations

from heliograph.accounts.api_keys import TooManyActiveKeys
from heliograph.accounts.organizations import OrganizationSuspended
from heliograph.api import api_keys, contacts, discovery, messages, sender_ids, sms, webhooks
from heliograph.api.operation import OPTIONAL, REQUIRED, Operation
from heliograph.base.errors import NotFound
from heliograph.contacts.records import ContactAlreadyExists
from heliograph.sms import accept
from heliograph.sms.messages import MessageNotCancelable
from heliograph.sms.sender_ids import SenderIdAlreadyExists, SenderIdNotApproved
from heliograph.webhooks.endpoints import TooManyEndpoints

PREFIX = "/v1"

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET",
        path="/",
        id="getApiIndex",
        summary="Version and addresses",
        response=discovery.Index,
        handler=discovery.get_index,
    ),
    Operation(
        method="GET",
        path="/health",
        id="getHealth",
        summary="Health snapshot",
        response=discovery.Health,
        handler=discovery.get_health,
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        id="getOpenApiDocument",
        summary="This document",
        response=discovery.Document,
        handler=discovery.get_openapi_document,
    ),
    Operation(
        method="POST",
        path="/sms/send",
        id="sendSms",
        summary="Send an SMS",
        scope="sms:send",
        bucket="sms_send",
        idempotency=REQUIRED,
        status=202,
        request=sms.SendSms,
        response=sms.SmsAccepted,
        refusals=(
            OrganizationSuspended,
            accept.DestinationNotAllowed,
            accept.RecipientOptedOut,
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
            accept.DestinationNotAllowed,
            accept.RecipientOptedOut,
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
            "`dateTo` to look in the right place at once. A test key sees what test keys sent."
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
        scope="sms:read",
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
        bucket="mutations",
        idempotency=OPTIONAL,
        status=201,
        request=sender_ids.CreateSenderIdRequest,
        response=sender_ids.SenderIdRequested,
        refusals=(SenderIdAlreadyExists,),
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
        response=api_keys.ApiKeyCreated,
        refusals=(TooManyActiveKeys,),
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
)
