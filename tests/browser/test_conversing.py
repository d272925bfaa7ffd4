"""Sending and answering messages in a real browser, with a worker and a simulated network."""

from __future__ import annotations

from uuid import UUID

import pytest

from heliograph.base.database.pool import Pool
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.people import policy
from heliograph.queue import timers
from heliograph.sms.accepting import sender_ids
from heliograph.sms.received import inbound, inbox
from heliograph.suppliers.contract import Inbound

from .conftest import Site, press_key

ANA, RUI = "+258841234567", "+258842222222"


async def receive_message(pool: Pool, site: Site, text: str, *, by: str = ANA) -> UUID:
    """Process an inbound message to one of the organization's numbers as a worker does; returns its conversation."""
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)
        if not await conn.fetchval("SELECT EXISTS (SELECT FROM sender_ids WHERE value = '90210')"):
            asked = await sender_ids.request(conn, site.made.actor, value="90210")
            await sender_ids.review(conn, site.made.actor, id=asked.id, status="approved")
        supplier = await conn.fetchval("SELECT id FROM suppliers LIMIT 1")
        heard = "SELECT count(*) FROM received_messages"
        before = await conn.fetchval(heard)
        await inbound.store(conn, supplier, [Inbound(by[1:], "90210", text, b"")])
        while await conn.fetchval(heard) == before:
            await inbox.process_due(conn)
        id: UUID = await conn.fetchval("SELECT id FROM inbox_threads WHERE peer = $1", by)
    return id


@pytest.mark.lasts(20)
async def test_by_keyboard_sent_delivered_and_answered(site: Site) -> None:
    """A text is previewed while it is typed, sent by keyboard, and the reply is answered in the inbox."""
    page = site.page
    await page.goto(await site.link())
    await page.wait_for_url(site.base + "/")
    await page.goto(site.base + "/send")
    await page.locator("#to:focus").wait_for()
    await page.keyboard.type(ANA)
    await page.locator("#message").focus()
    await page.keyboard.type("Olá, já está pronto")
    await page.locator("#preview", has_text="Unicode").wait_for()
    await press_key(page, "Alt+p")
    await page.locator("#look:focus").wait_for()
    # The button replaces the characters in the field.
    await page.locator("button[name=replace]").focus()
    await press_key(page, "Enter")
    await page.locator("#preview", has_text="GSM-7").wait_for()
    assert await page.locator("#message").input_value() == "Ola, ja esta pronto"
    await press_key(page, "Control+Enter")
    await page.wait_for_url("**/send?sent=*")
    await page.locator("#state[data-final]", has_text="Delivered").wait_for()
    await receive_message(site.pool, site, "When do you open?")
    await page.goto(site.base + "/inbox")
    await press_key(page, "j")
    await press_key(page, "Enter")
    await page.locator(".bubbles li").wait_for()
    await page.wait_for_load_state("load")
    await press_key(page, "r")
    await page.locator("#message:focus").wait_for()
    await page.keyboard.type("At nine.")
    await press_key(page, "Control+Enter")
    await page.locator(".bubbles .outbound", has_text="At nine.").locator(".status", has_text="Delivered").wait_for()
    assert await site.pool.fetchval("SELECT count(*) FROM messages") == 2


@pytest.mark.lasts(20)
async def test_what_is_typed_and_opened_stays_until_it_is_sent(site: Site) -> None:
    """While an answer is being typed, messages arrive, other buttons are pressed and other conversations opened."""
    page = site.page
    await site.enter()
    first, second = (
        await receive_message(site.pool, site, "When do you open?"),
        await receive_message(site.pool, site, "Hello", by=RUI),
    )
    await page.goto(f"{site.base}/inbox/{first}")
    field, menu, said = page.locator("#message"), page.locator(".thread details.who"), page.locator(".bubbles")
    await field.fill("At nine, except")
    await menu.locator("summary").click()
    await page.locator("#name").fill("Ana Sil")
    await receive_message(site.pool, site, "And on Sunday?")
    await said.get_by_text("And on Sunday?").wait_for()
    assert await menu.get_attribute("open") is not None
    assert (await page.locator("#name").input_value(), await field.input_value()) == ("Ana Sil", "At nine, except")
    # Another button submits its own form, without the answer.
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Assign to me").click()
    await page.get_by_role("button", name="Not mine").wait_for()
    await page.wait_for_load_state("load")
    assert await field.input_value() == "At nine, except"
    await page.locator(f"#t-{second} a").click()
    await page.wait_for_url(f"**/inbox/{second}")
    assert await field.input_value() == ""
    await page.locator(f"#t-{first} a").click()
    await page.wait_for_url(f"**/inbox/{first}")
    await field.press("End")
    await field.press_sequentially(" on Sundays.")
    await page.get_by_role("button", name="Send", exact=True).click()
    await page.wait_for_url(f"**/inbox/{first}#reply")
    await said.get_by_text("At nine, except on Sundays.").wait_for()
    await page.goto(f"{site.base}/inbox/{second}")
    await page.goto(f"{site.base}/inbox/{first}")
    assert await field.input_value() == "", "what was sent is not there to be sent again"
    assert await site.pool.fetchval("SELECT count(*) FROM messages") == 1


@pytest.mark.lasts(20)
async def test_who_may_be_answered_again_is_answered_without_a_new_page(site: Site) -> None:
    """The page used to say that the person could be answered, while the field below said that they could not."""
    page = site.page
    await site.enter()
    id = await receive_message(site.pool, site, "STOP")
    await page.goto(f"{site.base}/inbox/{id}")
    assert await page.locator("#message").is_disabled()
    await receive_message(site.pool, site, "START")
    await page.locator("#message:enabled").fill("Welcome back.")
    await press_key(page, "Control+Enter")
    await page.locator(".bubbles .outbound", has_text="Welcome back.").wait_for()


async def test_unread_conversations_do_not_lengthen_the_page(site: Site) -> None:
    """Words that only a screen reader says stood below the list's own scroll area: the page went on below its end."""
    page = site.page
    await site.enter()
    for n in range(12):
        await receive_message(site.pool, site, "Hello", by=f"+2588433333{n:02}")
    await page.goto(site.base + "/inbox")
    assert await page.locator(".threads .unread").count() == 12
    below = "document.documentElement.scrollHeight - document.querySelector('.foot').getBoundingClientRect().bottom"
    assert await page.evaluate(below) <= 1


async def test_without_scripts_a_message_is_previewed_and_sent(site: Site) -> None:
    """Journey 12: buttons do what scripts would do."""
    page = await site.context.new_page()
    site.watch(page)
    link = await site.link(password=True)
    await page.route("**/*.js", lambda route: route.abort())
    await page.goto(site.base + "/enter")
    await page.get_by_label("Link").fill(link)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(site.base + "/")
    await page.goto(site.base + "/send")
    await page.locator("#to").fill(ANA)
    await page.locator("#message").fill("Hello")
    await page.get_by_role("button", name="Preview").click()
    await page.locator("#preview", has_text="1 segment · GSM-7").wait_for()
    await page.locator("[data-send]").click()
    await page.wait_for_url("**/send?sent=*")
    await page.get_by_role("link", name="All about this message").click()
    await page.wait_for_url("**/messages/*")
    site.expect("ERR_FAILED")


#: Whether the first letter of an element's text, and not its last, is within the box that cuts it.
BEGINS = """one => {
  const text = document.createTreeWalker(one, NodeFilter.SHOW_TEXT), range = document.createRange();
  let node = text.nextNode();
  while (node.data.trim().length < 20) node = text.nextNode();
  const box = one.getBoundingClientRect();
  const isIn = (at) => {
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    const { left, right } = range.getBoundingClientRect();
    return left >= box.left - 1 && right <= box.right + 1;
  };
  const first = node.data.search(/\\S/);
  return [isIn(first), isIn(node.data.trimEnd().length - 1)];
}"""


@pytest.mark.lasts(10)
async def test_a_text_from_right_to_left_is_cut_at_its_own_end(site: Site) -> None:
    """Of a text that is cut in the wrong direction, the list shows the end."""
    page = site.page
    words = "\u0645\u0631\u062d\u0628\u0627 \u0623\u0631\u064a\u062f \u0645\u0648\u0639\u062f\u0627 "
    async with site.pool.acquire() as conn:
        await records.create_many(conn, site.made.actor, entries=[Entry(ANA, words * 5)])
        await policy.rename(conn, site.made.actor, name=words * 9)
    await receive_message(site.pool, site, words * 4)
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(await site.link())
    await page.wait_for_url(site.base + "/")
    await page.goto(site.base + "/inbox")
    for one in (".threads strong", ".threads .last", ".bar .organization"):
        assert await page.locator(one).first.evaluate(BEGINS) == [True, False], one
