"""Replying on WhatsApp from the form for sending: to whom and until when it is possible, and why not otherwise."""

from __future__ import annotations

import re

import pytest

from heliograph.base.database.pool import Pool
from tests.rules import whatsapp_factories as making
from tests.rules.callback_factories import Meta
from tests.rules.callback_factories import message as callback
from tests.rules.whatsapp_factories import Made

from .conftest import Browser, Tenant
from .test_sending import value

RUI = "+258842222222"
HERE = "/send?channel=reply"
TO_RUI = HERE + "&to=%2B258842222222"


@pytest.fixture
async def made(pool: Pool, tenant: Tenant) -> Made:
    return await making.made(pool, organization_id=tenant.id)


async def test_whoever_wrote_is_answered_once(pool: Pool, owner: Browser, made: Made) -> None:
    page = await owner.get(HERE)
    assert "Nobody at the moment." in page.words
    await Meta(pool).say(made, callback(made, "Where is my order?", by=RUI))
    page = await owner.get(HERE)
    assert "to=%2B258842222222" in page.text
    page = await owner.get(TO_RUI)
    assert "The window is open for" in page.words
    form = page.form("/send/reply") | {"message": "On its\r\nway"}
    for _ in range(2):
        page = await owner.post("/send/reply", form)
        assert "Your message" in page.words, page.words
    rows = await pool.fetch("SELECT recipient, content, person_id FROM whatsapp_messages WHERE direction = 'outbound'")
    assert [(row["recipient"], "On its\\nway" in row["content"], row["person_id"] is not None) for row in rows] == [
        (RUI, True, True)
    ]
    fragment = await owner.get(page.path, HX_Request="true")
    assert fragment.text.lstrip().startswith('<p class="lead" id="state"')


async def test_a_shut_window_is_told_in_the_field(pool: Pool, owner: Browser, made: Made) -> None:
    page = await owner.get(TO_RUI)
    assert "has not written to this number within the last 24 hours" in page.words
    assert ("disabled" in page.text, ">Send a template<" in page.text) == (True, True)
    # It closed while the form was open.
    await Meta(pool).say(made, callback(made, "Hello?", by=RUI))
    form = (await owner.get(TO_RUI)).form("/send/reply") | {"message": "Late"}
    page = await owner.post("/send/reply", form | {"message": "\u200b"})
    assert (page.status, "Write a text." in page.words) == (422, True)
    await pool.execute("UPDATE whatsapp_conversations SET expires_at = now() - interval '1 minute'")
    page = await owner.post("/send/reply", form)
    assert (page.status, value(page, "message")) == (422, "Late")
    # A disabled field is not sent: the next button would lose its text.
    assert re.search(r'<textarea id="message"[^>]* readonly[ >]', page.text)
    assert '<a href="#message">' in page.text
    for typed, field in (
        ({"to": ""}, "to"),
        ({"to": "nobody"}, "to"),
        ({"message": " "}, "message"),
        ({"message": "x" * 4_097}, "message"),
        ({"number": "none"}, "number"),
        ({"_once": ""}, "form"),
    ):
        page = await owner.post("/send/reply", form | typed)
        assert (page.status, f'<a href="#{field}">' in page.text) == (422, True), typed
    page = await owner.post("/send/reply/preview", form | {"to": "84 222 2222"})
    assert page.status == 200
    assert (await owner.get("/send/reply")).path == HERE
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE direction = 'outbound'") == 0
