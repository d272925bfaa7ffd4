"""Ten kilobytes in each field of each form that creates something: refused at the field, with the input kept."""

from __future__ import annotations

import re

import pytest

from .conftest import Browser

LONG = "x" * 10_000
#: Page → its form's address, and valid values: each field is filled except CHOICES.
FORMS = {
    "/account": ("/account", {"name": "Ana"}),
    "/campaigns/new": ("/campaigns", {"name": "Opening", "text": "We open at 9.", "tags": "vip"}),
    "/contacts/new": ("/contacts", {"name": "Ana", "phone": "+258841234567", "tags": "vip"}),
    "/contacts/opt-outs": ("/contacts/opt-outs/add", {"phone": "+258841234567", "reason": "asked for it"}),
    "/contacts/opt-outs/words": (
        "/contacts/opt-outs/words",
        {
            "opt_out_words": "basta",
            "stop_how": "own",
            "stop_reply": "Done.",
            "help_how": "own",
            "help_reply": "Call us.",
        },
    ),
    "/keys/new": ("/keys", {"name": "Shop", "profile": "sms_only", "allowed_ips": "192.0.2.1"}),
    "/senders/new": ("/senders", {"value": "SHOP"}),
    "/send": ("/send", {"to": "+258841234567", "message": "Hello", "reference": "order-1"}),
    "/settings": ("/settings/general", {"name": "Acme"}),
    "/team/invite": ("/team/invite", {"email": "rui@example.com", "note": "the new one", "role": "viewer"}),
    "/texts/new": ("/texts", {"name": "Opening", "body": "We open at 9."}),
    "/webhooks/new": (
        "/webhooks",
        {
            "url": "https://example.com/hooks",
            "description": "The shop",
            "subscribed_events": "message.delivered",
        },
    ),
}
#: Fields that are selected and not typed; a long value is none of the options.
CHOICES = {"stop_how", "help_how", "profile"}


@pytest.mark.parametrize("path", FORMS)
async def test_each_field_refuses_what_is_too_long(owner: Browser, path: str) -> None:
    action, fields = FORMS[path]
    for name in fields.keys() - CHOICES:
        form = (await owner.get(path)).form(action)
        answer = await owner.post(action, form | fields | {name: LONG})
        assert answer.status == 422, (name, answer.status, answer.words[:400])
        assert re.findall(r'<a href="#(\w+)">', answer.text) == [name]
        kept, boxes = answer.form(action), CHOICES | {"subscribed_events", "role"}
        assert all(kept[other] == fields[other] for other in fields.keys() - boxes - {name})
