"""Uses a client that was generated from the OpenAPI document, as a stranger would; runs in an environment of its own.

Arguments: base URL below which /v1 is, API key. Prints what the client made of the answers, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

from heliograph_client import AuthenticatedClient, Client
from heliograph_client.api.account import get_account_summary
from heliograph_client.api.api_keys import create_api_key, list_api_keys, revoke_api_key
from heliograph_client.api.campaigns import cancel_campaign, create_campaign, get_campaign
from heliograph_client.api.contacts import create_contact, delete_contact, list_contacts
from heliograph_client.api.discovery import get_api_index, get_health
from heliograph_client.api.events import list_events
from heliograph_client.api.sender_ids import create_sender_id_request, list_sender_ids
from heliograph_client.api.sms import cancel_sms_message, get_sms_message, list_sms_messages, preview_sms, send_sms
from heliograph_client.api.usage import list_usage
from heliograph_client.api.webhooks import create_webhook, disable_webhook, list_webhook_attempts
from heliograph_client.models import (
    CreateApiKey,
    CreateCampaign,
    CreateContact,
    CreateSenderIdRequest,
    CreateWebhook,
    CreateWebhookSubscribedEventsItem,
    SendSms,
)


def use(base_url: str, key: str) -> dict[str, object]:
    """Call operations of every kind; a key of the result is a question, its value the answer."""
    client = AuthenticatedClient(base_url=base_url + "/v1", token=key, raise_on_unexpected_status=True)
    seen: dict[str, object] = {}
    seen["index"] = get_api_index.sync(client=client).name
    seen["health"] = get_health.sync(client=client).version

    send = SendSms(to="+258841234567", message="Hello", client_reference="order-1")
    sent = send_sms.sync(client=client, body=send, idempotency_key="order-1")
    again = send_sms.sync_detailed(client=client, body=send, idempotency_key="order-1")
    seen["send"] = [sent.status, sent.count, sent.remaining_quota]
    seen["replayed"] = [again.headers["x-idempotency-status"], again.parsed.message.id == sent.message.id]
    conflict = send_sms.sync_detailed(
        client=client, body=SendSms(to="+258841234567", message="Other"), idempotency_key="order-1"
    )
    seen["conflict"] = [int(conflict.status_code), conflict.parsed.error.code]
    seen["preview"] = preview_sms.sync(client=client, body=send).preview.segments
    asyncio.run(_send_more(client))
    pages, cursor = [], {}
    while True:
        page = list_sms_messages.sync(client=client, limit=2, **cursor)
        pages.append([one.client_reference for one in page.items])
        if not page.has_more:
            break
        cursor = {"cursor": page.next_cursor}
    seen["pages"] = [len(one) for one in pages]
    seen["references"] = sorted(name for one in pages for name in one)
    read = get_sms_message.sync(message_id=sent.message.id, client=client)
    seen["read"] = [read.message.message, read.message.to, read.message.sent_at, read.timeline[0].status]
    seen["canceled"] = cancel_sms_message.sync(message_id=sent.message.id, client=client).message.status

    person = CreateContact(name="Ana Silva", phone="+258841234567", tags=["VIP"])
    contact = create_contact.sync(client=client, body=person).contact
    seen["contacts"] = [[one.name, one.tags] for one in list_contacts.sync(client=client, tag="vip").items]
    campaign = create_campaign.sync(
        client=client, body=CreateCampaign(name="Sale", message_template="Hello {{name}}", audience_tags=["vip"])
    ).campaign
    seen["campaign"] = get_campaign.sync(campaign_id=campaign.id, client=client).campaign.counts.delivered
    seen["campaign_end"] = cancel_campaign.sync(campaign_id=campaign.id, client=client).campaign.status
    seen["deleted"] = delete_contact.sync(client=client, id=contact.id).success

    made = create_api_key.sync(client=client, body=CreateApiKey(name="shop", profile="sms_only"))
    seen["keys"] = sorted(one.name for one in list_api_keys.sync(client=client).items)
    other = AuthenticatedClient(base_url=base_url + "/v1", token=made.secret)
    refused = create_contact.sync_detailed(client=other, body=person)
    seen["scope"] = [int(refused.status_code), refused.parsed.error.code]
    seen["revoked"] = revoke_api_key.sync(api_key_id=made.api_key.id, client=client).api_key.status
    create_sender_id_request.sync(client=client, body=CreateSenderIdRequest(value="ACME"))
    seen["senders"] = [[one.value, one.status, one.is_default] for one in list_sender_ids.sync(client=client).items]

    hook = create_webhook.sync(
        client=client,
        body=CreateWebhook(
            url="https://example.com/hooks", subscribed_events=[CreateWebhookSubscribedEventsItem.MESSAGE_DELIVERED]
        ),
    )
    seen["secret"] = hook.signing_secret != ""
    id = hook.webhook_endpoint.id
    seen["attempts"] = list_webhook_attempts.sync(webhook_endpoint_id=id, client=client).items
    seen["disabled"] = disable_webhook.sync(webhook_endpoint_id=id, client=client).webhook_endpoint.status

    seen["quota"] = get_account_summary.sync(client=client).account.quota.total
    seen["ledger"] = sorted({one.type_ for one in list_usage.sync(client=client).items})
    seen["events"] = list_events.sync(client=client).success
    unknown = list_contacts.sync_detailed(client=Client(base_url=base_url + "/v1"))
    seen["no key"] = [int(unknown.status_code), unknown.parsed.error.code]
    return seen


async def _send_more(client: AuthenticatedClient) -> None:
    await asyncio.gather(
        *(
            send_sms.asyncio(
                client=client,
                body=SendSms(to="+258841234568", message="Hello", client_reference=f"order-{number}"),
                idempotency_key=f"order-{number}",
            )
            for number in (2, 3, 4, 5)
        )
    )


if __name__ == "__main__":
    print(json.dumps(use(sys.argv[1], sys.argv[2])))
