"""Uses the Python client that openapi-generator made of the OpenAPI document, as a stranger would; runs in an
environment of its own.

Arguments: base URL below which /v1 is, API key. Prints what the client made of the answers, as JSON.
"""

from __future__ import annotations

import json
import sys

import heliograph_generated as generated
from heliograph_generated.exceptions import ApiException


def use(base_url: str, key: str) -> dict[str, object]:
    """Call operations of every kind; a key of the result is a question, its value the answer."""
    client = generated.ApiClient(generated.Configuration(host=base_url + "/v1", access_token=key))
    sms, contacts, campaigns = generated.SmsApi(client), generated.ContactsApi(client), generated.CampaignsApi(client)
    seen: dict[str, object] = {}
    sent = sms.send_sms("generated-1", generated.SendSms(to="+258841234567", message="Hello"))
    seen["sent"] = [sent.status, sent.count, sent.provider.message_id]
    seen["read"] = sms.get_sms_message(sent.message.id).message.message
    seen["messages"] = [one.status for one in sms.list_sms_messages(limit=5).items]
    person = generated.CreateContact(name="Ana Silva", phone="+258841234567", tags=["VIP"])
    seen["contact"] = contacts.create_contact(person).contact.tags
    spec = generated.CreateCampaign(name="Sale", message_template="Hello {{name}}", audience_tags=["vip"])
    campaign = campaigns.create_campaign(spec).campaign
    seen["campaign"] = campaigns.cancel_campaign(campaign.id).campaign.counts.delivered
    hook = generated.CreateWebhook(url="https://example.com/hooks", subscribed_events=["message.delivered"])
    seen["hook"] = generated.WebhooksApi(client).create_webhook(hook).webhook_endpoint.status
    text = generated.SendWhatsAppText(
        type="text",
        to="+258841234567",
        phoneNumberId="019c8f64-1f0a-7d52-8c3b-5a9e2d7f6b10",
        text=generated.WhatsAppTextContent(body="Hello"),
    )
    try:
        generated.WhatsappApi(client).send_whats_app_message(generated.SendWhatsAppMessageRequest(text))
    except ApiException as refusal:
        seen["refused"] = [refusal.status, refusal.data.error.code]
    # A kind of failure that nobody has thought of yet is read all the same.
    seen["open"] = generated.SmsFailure.from_dict({"code": "eaten_by_a_goat", "message": "It was."}).code
    return seen


if __name__ == "__main__":
    print(json.dumps(use(sys.argv[1], sys.argv[2])))
