"""WhatsApp on pages: templates and numbers in plain words, and sending a template manually."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from urllib.parse import quote

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.suppliers.whatsapp_cloud import objects as whatsapp_objects
from heliograph.suppliers.whatsapp_cloud.errors import classify
from heliograph.whatsapp.mirror import qualities, template_sync
from heliograph.whatsapp.mirror.qualities import QualityNote
from heliograph.whatsapp.mirror.sync import REFUSED
from heliograph.why.words import LANGUAGES, entries
from tests.rules import whatsapp_factories as making
from tests.rules.callback_factories import Meta
from tests.rules.callback_factories import message as callback
from tests.rules.whatsapp_factories import Made

from .conftest import Browser, Tenant, make_person

TO = "+258841234567"


@pytest.fixture
async def made(pool: Pool, tenant: Tenant) -> Made:
    return await making.made(pool, organization_id=tenant.id)


async def test_a_template_is_chosen_filled_in_and_sent_once(pool: Pool, owner: Browser, made: Made) -> None:
    page = await owner.get(f"/send?channel=template&to=%2B258841234567&template={made.template_id}")
    assert "order_shipped" in page.words
    form = page.form("/send/template")
    assert form["to"] == TO
    slots = [name for name in form if re.fullmatch(r"p\d", name)]
    assert len(slots) == 2
    preview = await owner.post("/send/template/preview", form | {"p1": "Ana", "p2": "7"}, HX_Request="true")
    assert ("<html" not in preview.text, "Ana" in preview.words, "once it is delivered" in preview.words) == (
        True,
        True,
        True,
    )
    assert '"parameters": ["Ana", "7"]' in preview.words
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 0
    # A value's braces are text, as they are at Meta.
    typed = await owner.post("/send/template/preview", form | {"p1": "{{2}}", "p2": "7"}, HX_Request="true")
    assert "Hello {{2}}, your order 7" in typed.words, typed.words
    page = await owner.post("/send/template", form | {"p1": "Ana", "p2": ""})
    assert (page.status, "Enter a value." in page.words, '<a href="#p2">' in page.text) == (422, True, True)
    for _ in range(2):
        page = await owner.post("/send/template", form | {"p1": "Ana", "p2": "7", "reference": "order-7"})
        assert page.path.startswith("/send?channel=template"), page.words
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 1
    assert "Your message" in page.words
    id = await pool.fetchval("SELECT id FROM whatsapp_messages")
    again = await owner.get(f"/send?again={id}")
    fields = again.form("/send/template")
    assert (fields["p1"], fields["p2"], fields["to"], fields["reference"]) == ("Ana", "7", TO, "order-7")
    fragment = await owner.get(page.path, HX_Request="true")
    assert fragment.text.lstrip().startswith('<p class="lead" id="state"')
    # The time to delivery is not labelled as that to reading.
    await pool.execute(
        "UPDATE whatsapp_messages SET status = 'read', sent_at = accepted_at + interval '1 second',"
        " delivered_at = accepted_at + interval '2 seconds', read_at = accepted_at + interval '1 hour'"
    )
    for shown in (fragment.path, f"/messages/{id}"):
        assert "Read delivered 2.0 s after it was accepted" in (await owner.get(shown, HX_Request="true")).words


MORE = """
INSERT INTO whatsapp_templates (organization_id, id, account_id, graph_id, name, language, category, status,
                                parameter_format, parameter_count, components, body_preview, created_at, updated_at)
SELECT organization_id, made.id, account_id, 'made' || n, 'newer_' || n, language, category, status, parameter_format,
       parameter_count, components, body_preview, now(), now()
  FROM whatsapp_templates one CROSS JOIN unnest($2::uuid[]) WITH ORDINALITY AS made (id, n) WHERE one.id = $1
"""


async def test_a_template_that_many_newer_ones_hide_is_found_by_its_name(
    pool: Pool, owner: Browser, made: Made
) -> None:
    await pool.execute(MORE, made.template_id, [uuid7() for _ in range(200)])
    named = "SELECT name || ' (' || language || ')' FROM whatsapp_templates WHERE id = $1"
    name = await pool.fetchval(named, made.template_id)
    page = await owner.get("/send?channel=template")
    assert ("<option>newer_200 (" in page.text, f"<option>{name}</option>" in page.text) == (True, False)
    for typed in (name, name.partition(" ")[0], str(made.template_id)):
        page = await owner.get("/send?channel=template&template=" + quote(typed))
        assert page.form("/send")["template"] == name
        assert page.form("/send/template")["template"] == str(made.template_id)
    form = page.form("/send/template") | {"to": TO, "p1": "Ana", "p2": "7"}
    assert (await owner.post("/send/template", form)).path.startswith("/send?channel=template")
    again = await owner.get(f"/send?again={await pool.fetchval('SELECT id FROM whatsapp_messages')}")
    assert again.form("/send/template")["template"] == str(made.template_id)
    assert "p1" not in (await owner.get("/send?channel=template&template=nowhere")).text

    form = (await owner.get("/campaigns/new?channel=whatsapp")).form("/campaigns")
    page = await owner.post("/campaigns", form | {"template": name, "do": "template"})
    assert (page.form("/campaigns")["template"], 'name="t2"' in page.text) == (name, True)


async def test_in_test_mode_the_outcome_is_chosen_and_contacts_are_suggested(
    pool: Pool, tenant: Tenant, owner: Browser, made: Made
) -> None:
    async with pool.acquire() as conn:
        await records.create(conn, tenant.actor, entry=Entry(TO, "Ana Silva"))
    form = (await owner.get(f"/send?channel=template&template={made.template_id}")).form("/send/template")
    assert "outcome" not in form
    typed = {"p1": "Ana", "p2": "7"}
    page = await owner.post("/send/template/preview", form | typed | {"to": "ana"}, HX_Request="true")
    assert f'<option value="{TO}">Ana Silva</option>' in page.text
    page = await owner.get(f"/send?channel=template&mode=test&template={made.template_id}")
    assert 'value="0003">Sent, then expired</option>' in page.text
    form = page.form("/send/template?mode=test") | typed | {"outcome": "0003"}
    page = await owner.post("/send/template?mode=test", form | {"to": ""})
    assert "Your message" in page.words, page.words
    page = await owner.get("/send?channel=reply&mode=test")
    form = page.form("/send/reply?mode=test") | {"to": "+258841230000", "message": "Hi", "outcome": "0001"}
    page = await owner.post("/send/reply?mode=test", form)
    assert "Your message" in page.words, page.words
    sent = [row["recipient"] for row in await pool.fetch("SELECT recipient FROM whatsapp_messages ORDER BY id")]
    assert [sent[0][-4:], sent[1]] == ["0003", "+258841230001"]


async def test_a_message_is_sent_again_as_what_it_was(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, made: Made
) -> None:
    """From its page, which shows it as code and what it cost."""
    template = await making.message(pool, made, to=TO, price=30_000)
    page = await owner.get(f"/messages/{template}")
    assert f'href="/send?again={template}"' in page.text
    assert ("/v1/whatsapp/messages" in page.words, '"parameters": ["Ana", "7"]' in page.words) == (True, True)
    assert "Its price is €0.03, which is not charged yet." in page.words
    assert "Hello Ana, your order 7 was shipped." in page.words
    await pool.execute(
        "UPDATE whatsapp_messages SET charge = 'consumed', consumed = reserved, reserved = 0 WHERE id = $1", template
    )
    assert "Its price is €0.03." in (await owner.get(f"/messages/{template}")).words
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    assert "Its price" not in (await other_browser.get(f"/messages/{template}")).words
    reply = await making.message(pool, made, to=TO, type="text", text="On its way", price=0)
    page = await owner.get(f"/messages/{reply}")
    assert ('"text": {"body": "On its way"}' in page.words, "Its price" in page.words) == (True, False)
    # An organization may have several numbers.
    line = await pool.fetchval("SELECT display_phone_number FROM whatsapp_numbers")
    assert f"<dt>From</dt><dd>{line}</dd>" in page.text
    assert line in (await owner.get("/messages")).words, "a reply has no template"
    page = await owner.get(f"/send?again={reply}")
    assert page.path == f"/send?channel=reply&again={reply}"
    assert ">On its way</textarea>" in page.text
    # Erased data is not made up, and the outcome of a test is explained by its own digits.
    await pool.execute("UPDATE whatsapp_messages SET content = NULL")
    assert "The same from a program" not in (await owner.get(f"/messages/{template}")).words
    test = await making.message(pool, made, to="+258841230003", mode="test")
    said = "The last four digits of its number, 0003, chose: Sent, then expired."
    assert said in (await owner.get(f"/messages/{test}?mode=test")).words


async def test_the_page_of_a_message_has_the_values_outside_its_text(
    pool: Pool, tenant: Tenant, owner: Browser, made: Made
) -> None:
    components = [
        {"type": "HEADER", "format": "TEXT", "text": "Order {{1}}"},
        {"type": "BODY", "text": "Hello {{1}}, it was shipped."},
        {"type": "BUTTONS", "buttons": [{"type": "URL", "text": "Follow", "url": "https://example.com/{{1}}"}]},
    ]
    template = await making.template(
        pool, made.organization_id, made.account_id, name="follow", parameter_count=3, components=components
    )
    sent = await making.message(pool, made, to=TO, template_id=template, parameters=("A-42", "Ana", "t0k"))
    page = await owner.get(f"/messages/{sent}")
    for said in ("Hello Ana, it was shipped.", "Header A-42", "End of the URL t0k"):
        assert said in page.words, page.words
    # If the template takes other values now, they are shown as its text.
    await pool.execute("UPDATE whatsapp_templates SET components = $2::text::jsonb WHERE id = $1", template, "[]")
    page = await owner.get(f"/messages/{sent}")
    assert ("A-42, Ana, t0k" in page.words, "Header A-42" in page.words) == (True, False)


async def test_a_message_that_waits_for_whatsapp_says_what_for(pool: Pool, owner: Browser, made: Made) -> None:
    id = await making.message(pool, made, to=TO)

    async def waits() -> str:
        page = await owner.get(f"/messages/{id}")
        return re.sub(r"<[^>]*>", "", page.text.partition('<h2 id="why"')[2].partition("<li>")[2].partition("</li>")[0])

    assert "others are ahead of it" in await waits()
    # The limit of its portfolio, which counts neither people who were messaged already nor those with an open window.
    limited = "WhatsApp's limit is reached: 2 people in 24 hours. It is sent once others may be written to."
    portfolio = await pool.fetchval("SELECT portfolio FROM whatsapp_accounts WHERE id = $1", made.account_id)
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 2")
    assert "others are ahead of it" in await waits()
    await pool.execute("INSERT INTO whatsapp_portfolios (portfolio, users, frees_at) VALUES ($1, 2, now())", portfolio)
    assert html.unescape(await waits()) == limited
    await pool.execute("INSERT INTO whatsapp_reached VALUES ($1, $2, now() - interval '23 hours')", portfolio, TO)
    assert "others are ahead of it" in await waits()
    await pool.execute("UPDATE whatsapp_reached SET reached_at = now() - interval '25 hours'")
    assert html.unescape(await waits()) == limited
    await pool.execute("UPDATE whatsapp_conversations SET expires_at = now() + interval '1 hour'")
    assert "others are ahead of it" in await waits()
    await pool.execute("UPDATE whatsapp_accounts SET held_until = now() + interval '1 hour', held_reason = 'payment'")
    assert await waits() == "WhatsApp holds its number back. It is sent once that is over."
    # Its template.
    await pool.execute("UPDATE queue SET line = $1", made.template_id)
    assert await waits() == "It waits until WhatsApp has confirmed its template."
    await pool.execute("UPDATE whatsapp_templates SET status = 'paused'")
    assert await waits() == "It waits for its template: Paused."
    await pool.execute("UPDATE queue SET lease_until = now() + interval '1 minute'")
    assert await waits() == "It is being handed over."


async def test_a_template_that_was_edited_after_its_message_was_sent_says_so(
    pool: Pool, tenant: Tenant, owner: Browser, made: Made
) -> None:
    """The present template is not what they read."""
    template = await making.template(pool, made.organization_id, made.account_id, name="shipped")
    graph_id = await pool.fetchval("SELECT graph_id FROM whatsapp_templates WHERE id = $1", template)

    async def read(text: str, minutes: int, status: str = "APPROVED") -> None:
        """Meta's list, read `minutes` ago."""
        raw = {"id": graph_id, "name": "shipped", "language": "en", "status": status, "category": "UTILITY"}
        one = whatsapp_objects.template(raw | {"components": [{"type": "BODY", "text": text}]})
        assert one is not None
        async with pool.acquire() as conn, conn.transaction():
            at = clock.now() - timedelta(minutes=minutes)
            await template_sync.store_listing(
                conn, made.organization_id, made.account_id, [one], at=at, asked_at=at, asked={}
            )

    was = "Hello {{1}}, your order {{2}} was shipped."
    await read(was, 80)
    sent = await making.message(pool, made, to=TO, template_id=template, age=timedelta(minutes=60))
    await pool.execute("UPDATE whatsapp_messages SET sent_at = accepted_at")
    said = "The template was edited after this message was sent"
    await read(was, 50, "PAUSED")
    assert said not in (await owner.get(f"/messages/{sent}")).words
    await read("Hi {{1}}: {{2}} is on its way.", 30)
    page = await owner.get(f"/messages/{sent}")
    assert ("Hi Ana: 7 is on its way." in page.words, said in page.words) == (True, True)
    await pool.execute("UPDATE whatsapp_templates SET edited_at = edited_at - interval '30 minutes'")
    later = await making.message(pool, made, to=TO, template_id=template, age=timedelta(minutes=10))
    # Meta may leave out `sent`.
    await pool.execute("UPDATE whatsapp_messages SET delivered_at = accepted_at WHERE id = $1", later)
    assert said not in (await owner.get(f"/messages/{later}")).words
    await Meta(pool).say(made, callback(made, by=TO))
    thread = await pool.fetchval("SELECT id FROM inbox_threads")
    bubbles = (await owner.get(f"/inbox/{thread}")).words
    assert bubbles.count("edited since") == 1
    # If it takes other values now, there is more reason to.
    await read("Hi {{1}}.", 5)
    assert said in (await owner.get(f"/messages/{later}")).words
    # Nobody read a message that was never sent.
    await pool.execute("UPDATE whatsapp_messages SET delivered_at = NULL, sent_at = NULL WHERE id = $1", later)
    assert said not in (await owner.get(f"/messages/{later}")).words


async def test_a_message_has_the_text_of_its_own_account(pool: Pool, owner: Browser, made: Made) -> None:
    """Another account of the organization has a template with the same name, which was edited later."""
    account_id, _ = await making.account(pool, made.organization_id, made.app)
    components = [{"type": "BODY", "text": "Another text for {{1}} and {{2}}."}]
    await making.template(pool, made.organization_id, account_id, components=components)
    await pool.execute(
        "UPDATE whatsapp_templates SET edited_at = now() + interval '1 hour', updated_at = now() + interval '1 hour'"
        " WHERE account_id = $1",
        account_id,
    )
    sent = await making.message(pool, made, to=TO)
    await pool.execute("UPDATE whatsapp_messages SET sent_at = accepted_at")
    page = await owner.get(f"/messages/{sent}")
    assert "Hello Ana, your order 7 was shipped." in page.words
    assert "The template was edited after this message was sent" not in page.words


async def test_what_a_template_is_refused_for(pool: Pool, owner: Browser, made: Made) -> None:
    where = f"/send?channel=template&to=%2B258841234567&template={made.template_id}"
    form = (await owner.get(where)).form("/send/template") | {"p1": "Ana", "p2": "7"}
    page = await owner.post("/send/template", form | {"p1": "two\nlines"})
    assert (page.status, '<a href="#p1">' in page.text) == (422, True)
    assert ("WhatsApp refuses this value" in page.words, "template.parameters" in page.text) == (True, False)
    assert "WhatsApp refuses this value" in (await owner.post("/send/template/preview", form | {"p2": "7\t8"})).words
    page = await owner.post("/send/template", form | {"p1": "n" * 1_024})
    assert (page.status, "longer than WhatsApp allows" in page.words) == (422, True), page.words
    assert "template.parameters" not in page.text
    page = await owner.post("/send/template", form | {"number": "none"})
    assert page.status == 422
    await pool.execute("UPDATE wallets SET available = 0, total = reserved + consumed")
    page = await owner.post("/send/template", form)
    assert (page.status, "The wallet does not cover it:" in page.words) == (422, True)
    assert "The wallet does not cover it:" in (await owner.post("/send/template/preview", form)).words
    await pool.execute("UPDATE whatsapp_templates SET status = 'paused'")
    page = await owner.get("/send?channel=template")
    assert "No template can be sent yet" in page.words


async def test_templates_in_words(pool: Pool, tenant: Tenant, owner: Browser, made: Made) -> None:
    await pool.execute("UPDATE whatsapp_templates SET quality = 'YELLOW' WHERE id = $1", made.template_id)
    page = await owner.get("/templates")
    assert "order_shipped" in page.words
    assert "Language Category Status Quality Values Sent Changed" in page.words
    assert '<td data-name="Quality"><span>medium: people block or report it</span></td>' in page.text
    page = await owner.get(f"/templates/{made.template_id}")
    for said in ("WhatsApp has approved it: it can be sent.", "Send it", "On a phone", "curl"):
        assert said in page.words, said
    await pool.execute(
        "UPDATE whatsapp_templates SET status = 'rejected', rejection_reason = 'INVALID_FORMAT' WHERE id = $1",
        made.template_id,
    )
    page = await owner.get(f"/templates/{made.template_id}")
    assert "Its variables are not well formed" in page.words
    assert "Send it" not in page.words
    page = await owner.get("/templates?status=rejected&name=order_shipped")
    assert "Rejected" in page.words
    assert "Its variables are not well formed" in page.words
    assert "Nothing matches" in (await owner.get("/templates?status=paused")).words
    assert "order_shipped" in (await owner.get("/templates?after=nonsense")).words


async def test_every_reason_is_told_in_both_languages(pool: Pool, owner: Browser, made: Made) -> None:
    """Journey 5, for WhatsApp's codes: those of SMS are tested in the browser."""
    id = await making.message(pool, made)
    for code, known in entries()["whatsapp_failure"].items():
        await pool.execute(
            "UPDATE whatsapp_messages SET status = 'failed', failed_at = now(), failure_code = $2 WHERE id = $1",
            id,
            code,
        )
        for language in LANGUAGES:
            page = await owner.get(f"/messages/{id}", Cookie=f"hg-language={language}")
            said = known.words(language)
            for sentence in (said.customer, said.cause, said.remedy):
                assert sentence in page.words, (code, language)


async def test_numbers_in_words(pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser) -> None:
    assert "There is no WhatsApp number yet" in (await owner.get("/numbers")).words
    made = await making.made(pool, organization_id=tenant.id)
    await pool.execute(
        "UPDATE whatsapp_numbers SET messaging_limit = 2000, quality_rating = 'yellow',"
        " held_until = now() + interval '1 h'"
    )
    await pool.execute(
        "INSERT INTO whatsapp_portfolios SELECT portfolio, 1240, now() FROM whatsapp_accounts"
        " ON CONFLICT (portfolio) DO UPDATE SET users = 1240"
    )
    page = await owner.get("/numbers")
    for said in ("1,240 of 2,000 people in the last 24 h", "medium: people block", "WhatsApp holds it back until"):
        assert said in page.words, said
    for secret in (made.graph_id, made.waba_id):
        assert secret not in page.text
    # Whether a reading or a refused message showed it.
    for reason in (REFUSED, classify(190).title, classify(200).title):
        await pool.execute("UPDATE whatsapp_accounts SET held_until = now() + interval '2 h', held_reason = $1", reason)
        assert "its credential does not work" in (await owner.get("/numbers")).words
    await pool.execute("UPDATE whatsapp_accounts SET held_reason = $1", classify(131042).title)
    assert "its credential does not work" not in (await owner.get("/numbers")).words
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    assert (await other_browser.get("/numbers")).status == 200
    assert (await other_browser.get("/send?channel=template")).status == 403


async def test_how_often_a_template_was_sent_and_how_qualities_went(
    pool: Pool, tenant: Tenant, owner: Browser, made: Made
) -> None:
    where = f"/templates/{made.template_id}"
    assert "Sent never" in (await owner.get(where)).words
    form = (await owner.get(f"/send?channel=template&to=%2B258841234567&template={made.template_id}")).form(
        "/send/template"
    )
    for n in range(2):
        await owner.post("/send/template", form | {"p1": "Ana", "p2": "7", "_once": f"n{n}"})
    page = await owner.get(where)
    assert ("2 times, last" in page.words, "Among the latest 20,000 messages." in page.words) == (True, True)
    assert 'data-name="Sent" class="end nowrap"><span>2<' in (await owner.get("/templates")).text
    number = await pool.fetchval("SELECT id FROM whatsapp_numbers")
    async with pool.acquire() as conn:
        for day, quality, limit in ((3, "green", 1_000), (1, "yellow", 250)):
            at = clock.now() - timedelta(days=day)
            await qualities.note(conn, tenant.id, [QualityNote(number, quality, limit)], at)
            await qualities.note(conn, tenant.id, [QualityNote(made.template_id, quality)], at)
    page = await owner.get("/numbers")
    assert "Quality over time" in page.words
    assert page.words.index("250 people in 24 h") < page.words.index("1,000 people in 24 h"), "newest first"
    assert "Quality over time" in (await owner.get(where)).words
