"""What is chosen beside a form leaves what was typed, and what was copied or selected is said."""

from __future__ import annotations

import pytest

from heliograph.sms.by_hand import saved_texts
from tests.rules import whatsapp_factories as making

from .conftest import NIGHT, Site, looks, press_key, until_true_in_page
from .test_keeping import PHONE, send


@pytest.mark.lasts(15)
async def test_choosing_a_text_or_a_template_keeps_what_else_was_typed(site: Site) -> None:
    page = site.page
    async with site.pool.acquire() as conn:
        text = await saved_texts.create(conn, site.made.actor, name="Opening", body="We are open")
    made = await making.made(site.pool, organization_id=site.made.actor.organization_id)
    await site.enter()
    await page.goto(site.base + "/send")
    await page.locator("#to").fill(PHONE)
    await page.locator("#form details.more > summary").click()
    await page.locator("#reference").fill("order-7")
    await page.locator("#saved").select_option(str(text.id))
    await page.wait_for_url(site.base + "/send/preview")
    await page.locator("#preview .bubble", has_text="We are open").wait_for()
    kept = [await page.locator(one).input_value() for one in ("#to", "#reference", "#message", "#saved")]
    assert kept == [PHONE, "order-7", "We are open", str(text.id)]

    # Who goes back from a refused form, whose page has the same address, finds what was typed before.
    await page.goto(site.base + "/send")
    await page.wait_for_load_state("load")
    await page.locator("#to").fill("nobody")
    await page.locator("#message").fill("Hello")
    await page.locator("[data-send]").click()
    await page.locator("#summary").wait_for()
    site.expect("status of 422")
    await page.go_back()
    await until_true_in_page(page, "() => document.getElementById('to').value === 'nobody'")

    await page.goto(f"{site.base}/send?channel=template&template={made.template_id}")
    await page.wait_for_load_state("load")
    await page.locator("#to").fill(PHONE)
    await page.locator("#p1").fill("Ana")
    await page.locator("select#template").dispatch_event("change")
    await page.wait_for_url(site.base + "/send/template/preview")
    assert [await page.locator(one).input_value() for one in ("#to", "#p1")] == [PHONE, "Ana"]


@pytest.mark.lasts(10)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True, ids=str)
async def test_what_was_copied_or_selected_is_said(site: Site) -> None:
    page = site.page
    await site.enter()
    await site.context.grant_permissions(["clipboard-read", "clipboard-write"])
    id, _ = await send(site)
    await page.goto(f"{site.base}/messages/{id}")
    await press_key(page, "c")
    await page.get_by_role("status").get_by_text(site.says("Copied"), exact=True).wait_for()
    assert await page.evaluate("navigator.clipboard.readText()") == id
    # Not by a colour alone, and only for a moment.
    sign = page.locator("main [data-copy] use[href$='#check']")
    await sign.wait_for(state="detached")
    assert await page.locator("main [data-copy] use[href$='#copy']").count() > 0

    # The palette finds what is typed without its accents.
    await press_key(page, "Control+k")
    await page.locator(".palette input").fill("definicoes")
    await page.locator(".palette li").get_by_text(site.says("Settings"), exact=True).wait_for()
    await press_key(page, "Enter")
    await page.wait_for_url(site.base + "/settings")

    # A character that is composed of several keys arrives in it whole, and the keys of the composition lead nowhere.
    keyboard = await site.context.new_cdp_session(page)
    await page.locator("#seek").focus()
    await keyboard.send("Input.imeSetComposition", {"text": "´", "selectionStart": 1, "selectionEnd": 1})
    await keyboard.send("Input.insertText", {"text": "Á"})
    await page.keyboard.type("udio")
    assert await page.locator(".palette input").input_value() == "Áudio"
    await page.locator(".palette input").fill("definicoes")
    await page.locator(".palette li").get_by_text(site.says("Settings"), exact=True).wait_for()
    enter = "new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, cancelable: true })"
    assert await page.locator(".palette input").evaluate(f"(input) => input.dispatchEvent({enter})")

    # One thing is not many, which Portuguese tells apart.
    await page.goto(site.base + "/messages")
    await page.wait_for_load_state("load")
    await page.locator("input[name=id]").first.check()
    one = site.locale.count("%(num)s selected", "%(num)s selected", 1)
    assert await page.locator("[data-marked]").inner_text() == one
