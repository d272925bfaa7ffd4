"""Ten kilobytes in each field of each form that makes something: refused at its field, and what was typed is kept."""

from __future__ import annotations

import re

import pytest

from .conftest import Browser

LONG = "x" * 10_000
#: Page → what makes its form right, with each field that is written into.
FORMS = {
    "/campaigns/new": {"name": "Opening", "text": "We open at 9.", "tags": "vip"},
    "/contacts/new": {"name": "Ana", "phone": "+258841234567", "tags": "vip"},
    "/keys/new": {"name": "Shop", "allowed_ips": "192.0.2.1"},
    "/senders/new": {"value": "SHOP"},
    "/webhooks/new": {
        "url": "https://example.com/hooks",
        "description": "The shop",
        "subscribed_events": "message.delivered",
    },
}


@pytest.mark.parametrize("path", FORMS)
async def test_each_field_refuses_what_is_too_long(owner: Browser, path: str) -> None:
    action = path.removesuffix("/new")
    for name in FORMS[path]:
        form = (await owner.get(path)).form(action)
        answer = await owner.post(action, form | FORMS[path] | {name: LONG})
        assert answer.status == 422, (name, answer.status, answer.words[:400])
        assert re.findall(r'<a href="#(\w+)">', answer.text) == [name]
        kept, boxes = answer.form(action), {"subscribed_events"}
        assert all(kept[other] == FORMS[path][other] for other in FORMS[path].keys() - boxes - {name})
