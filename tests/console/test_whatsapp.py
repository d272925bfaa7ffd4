"""Accounts are connected, watched, held and released; callbacks that could not be applied; rates from a file."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from uuid import UUID

import aiohttp
import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.pages import languages, words
from heliograph.simulators.graph.simulator import GraphSimulator, quick
from heliograph.suppliers.whatsapp_cloud.callbacks.items import AccountItem, MessageItem
from heliograph.whatsapp import checks
from heliograph.whatsapp.callbacks import dead_letters
from heliograph.whatsapp.callbacks.dead_letters import DeadLetter
from heliograph.whatsapp.callbacks.processing.inbox import Inbox
from heliograph.whatsapp.dispatch import holds
from heliograph.whatsapp.mirror import apps
from heliograph.whatsapp.money import rates
from heliograph.whatsapp.money.rates import Rate
from tests.api.conftest import SECRET_KEY, Tenant, make_tenant
from tests.rules import whatsapp_factories

from .conftest import Browser, Page, signed_in

KEY = apps.seal_key(Settings(secret_key=SECRET_KEY))


@pytest.fixture
async def graph() -> AsyncIterator[GraphSimulator]:
    async with GraphSimulator(quick()) as found:
        yield found


def typed(graph: GraphSimulator, **changed: str) -> dict[str, str]:
    """Input for the simulator's account."""
    of = graph.options
    values = {"app_id": of.app_id, "app_secret": of.app_secret, "waba_id": of.waba, "token": of.token}
    return values | {"organization": "Acme", "base_url": graph.base_url} | changed


async def connected(root: Browser, graph: GraphSimulator) -> Page:
    page = await root.submit(
        await root.get("/console/whatsapp/new"), "/console/whatsapp/new", do="connect", **typed(graph)
    )
    assert "It is connected." in page.words, page.words
    return page


async def test_very_many_templates_of_an_account_have_pages_and_a_search(
    pool: Pool, tenant: Tenant, root: Browser, graph: GraphSimulator
) -> None:
    page = await connected(root, graph)
    known = re.findall(r'action="/console/whatsapp/templates/[^"]*"', page.text)
    assert 'name="q" type="search"' not in page.text
    await pool.execute(
        "INSERT INTO whatsapp_templates (organization_id, id, account_id, graph_id, name, language, category, status,"
        " parameter_format, parameter_count, components, body_preview, created_at, updated_at)"
        " SELECT organization_id, gen_random_uuid(), account_id, 'made' || n, 'zz_' || n / 2, 'x' || n % 2, category,"
        " status, parameter_format, parameter_count, components, body_preview, now(), now()"
        " FROM (SELECT * FROM whatsapp_templates LIMIT 1) one, generate_series(1, 120) AS n"
    )
    path, forms = page.path, []
    for number in range(1, 4):
        shown = await root.get(path)
        forms += re.findall(r'action="(/console/whatsapp/templates/[^"?]*)', shown.text)
        further = re.search(r'rel="next" href="([^"#]+)#templates"', shown.text)
        assert (further is None) == (number == 3)
        path = html.unescape(further[1]) if further else path
    assert len(forms) == len(set(forms)) == 120 + len(known)
    # Disabling one on a later page returns to that page.
    action = re.findall(r'action="(/console/whatsapp/templates/[^"]*)"', shown.text)[-1]
    after = await root.submit(shown, html.unescape(action), do="disable")
    assert (after.path, "It is disabled" in after.words) == (path, True)
    found = await root.get(f"{page.path}?q=ZZ_6")
    # zz_6 and zz_60, the first of them in two languages.
    assert found.text.count('action="/console/whatsapp/templates/') == 3
    assert "Nothing matches" in (await root.get(f"{page.path}?q=nowhere")).words


async def test_an_account_outlives_the_secret_key(
    pool: Pool, tenant: Tenant, root: Browser, graph: GraphSimulator
) -> None:
    here = (await connected(root, graph)).path
    lost = r"'\x01' || gen_random_uuid()::text::bytea"
    await pool.execute(f"UPDATE whatsapp_accounts SET token = {lost}")
    await pool.execute(f"UPDATE whatsapp_apps SET secret = {lost}, verify_token = {lost}")
    page = await root.get(here)
    assert "its token was encrypted with another secret key" in page.words
    assert "Verify token" not in page.words
    for action, fields in (("sync", {}), ("subscribe", {}), ("token", {"token": graph.options.token})):
        refused = await root.post(f"{here}/{action}", page.form(f"{here}/sync") | fields)
        assert (refused.status, "Encrypted with another secret key" in refused.words) == (422, True), refused.words
    simulated = await root.get(f"{here}/simulate")
    assert simulated.status == 200
    refused = await root.submit(
        await root.get("/console/whatsapp/new"), "/console/whatsapp/new", do="try", **typed(graph) | {"app_secret": ""}
    )
    assert (refused.status, "Encrypted with another secret key" in refused.words) == (422, True), refused.words
    page = await root.submit(await root.get(f"{here}/app"), f"{here}/app", app_secret=graph.options.app_secret)
    assert (page.path, "Verify token" in page.words) == (here, True)
    page = await root.submit(page, f"{here}/token", token=graph.options.token)
    assert "The token works" in page.words, page.words


async def test_each_value_is_tried_before_anything_is_kept(
    pool: Pool, tenant: Tenant, root: Browser, graph: GraphSimulator
) -> None:
    here = "/console/whatsapp/new"
    page = await root.get(here)
    for changed, said in (
        ({"app_id": "x"}, "digits only"),
        ({"waba_id": ""}, "digits only"),
        ({"token": " "}, "Paste the token."),
        ({"organization": "Nobody"}, "There is no organization"),
        ({"app_secret": ""}, "An app that is not known here needs its secret."),
        ({"base_url": "http://graph.example.com"}, "https"),
    ):
        wrong = await root.submit(page, here, do="try", **typed(graph, **changed))
        assert wrong.status == 422, changed
        assert said in wrong.words, wrong.words
        # What was typed stays.
        assert wrong.form(here)["app_id"] == typed(graph, **changed)["app_id"]
    # What the rules say is in the words of the form, in the reader's language.
    for changed, said in (
        ({"app_secret": ""}, "Uma app que aqui não se conhece precisa do seu segredo."),
        ({"currency": "EURO"}, "Escreva uma moeda pelas suas três letras"),
        ({"base_url": "http://graph.example.com"}, "Um endereço da Graph API come"),
        ({"waba_id": "123"}, "a conta não pode ser lida"),
    ):
        form = page.form(here) | typed(graph, **changed) | {"do": "connect"}
        wrong = await root.post(here, form, accept_language="pt")
        assert (wrong.status, said in wrong.words, "`" in wrong.words) == (422, True, False), wrong.words
    nothing = dict.fromkeys(("organization", "app_id", "waba_id", "token"), "?") | {"token": ""}
    wrong = await root.submit(page, here, do="try", **typed(graph, **nothing))
    for field in nothing:
        assert f'href="#{field}"' in wrong.text, (field, wrong.words)
    wrong = await root.submit(page, here, do="try", **typed(graph, token="unheard-of"))
    assert "Everything works." not in wrong.words
    assert 'class="wrong"' in wrong.text
    page = await root.submit(page, here, do="try", **typed(graph))
    for said in ("Meta knows the app and its secret.", "Meta accepts the token", "1 number", "Everything works."):
        assert said in page.words, page.words
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_apps") == 0, "nothing is kept"
    away = await root.submit(page, here, do="try", **typed(graph, base_url="http://127.0.0.1:1"))
    assert "numbers: connect Connection refused" in away.words, away.words
    refused = await root.submit(page, here, do="connect", **typed(graph, token="unheard-of"))
    assert refused.status == 422
    assert "rejects this token" in refused.words
    for fields, said in (
        ({"expires_at": int(clock.now().timestamp()) + 86_400}, "o token expira em"),
        ({"scopes": ["whatsapp_business_messaging"]}, "whatsapp_business_management não está concedido"),
    ):
        graph.set_token("a-token", **fields)
        form = page.form(here) | typed(graph, token="a-token") | {"do": "try"}
        tried = await root.post(here, form, accept_language="pt")
        assert said in tried.words, tried.words
    page = await connected(root, graph)
    again = await root.submit(await root.get(here), here, do="connect", **typed(graph))
    assert "connected already" in again.words
    assert graph.set_account().subscribed == [graph.options.app_id]
    async with pool.acquire() as conn:
        (app,) = [await apps.get_app(conn, KEY, row["id"]) for row in await conn.fetch("SELECT id FROM whatsapp_apps")]
        who = await conn.fetchval("SELECT who FROM audit_log WHERE action = 'whatsapp_account.added'")
    assert who == "operator"
    for kept in (f"/in/whatsapp/{app.id}", app.verify_token, "message_template_status_update"):
        assert kept in page.text, kept
    for secret in (graph.options.token, graph.options.app_secret):
        assert secret not in page.text


async def test_an_account_waits_for_its_first_callback(
    pool: Pool, tenant: Tenant, root: Browser, graph: GraphSimulator
) -> None:
    page = await connected(root, graph)
    assert "waiting for the first one" in page.words
    async with pool.acquire() as conn:
        (row,) = await conn.fetch("SELECT id FROM whatsapp_apps")
        await apps.record_verified(conn, row["id"])
        await apps.record_callbacks(conn, [row["id"]])
    live = await root.get(page.path, HX_Request="true")
    assert "waiting for" not in live.words
    assert "<html" not in live.text


async def test_an_account_is_told_in_the_operators_language(
    pool: Pool, tenant: Tenant, root: Browser, graph: GraphSimulator
) -> None:
    here = (await connected(root, graph)).path
    await pool.execute(
        "UPDATE whatsapp_templates SET status = 'rejected', rejection_reason = 'INVALID_FORMAT', quality = 'red'"
    )
    page = await root.get(here, Cookie="hg-language=pt")
    for told in (
        words.CONNECTIONS["connected"],
        words.CATEGORIES["utility"],
        words.TEMPLATE_STATUSES["rejected"],
        words.REJECTIONS["invalid_format"],
        words.QUALITIES["red"],
    ):
        assert languages.locale("pt").text(told) in page.words, told
    for raw in ("connected", "utility", "rejected", "INVALID_FORMAT", "red", "green", "unknown", "tier_2k"):
        assert not re.search(rf"\b{raw}\b", page.words, re.I), raw


async def test_an_account_is_paused_held_released_and_read_anew(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser, graph: GraphSimulator
) -> None:
    page = await connected(root, graph)
    here = page.path
    listed = await root.get("/console/whatsapp")
    assert here in listed.text
    # Meta verifies an address before it sends anything, and sends nothing if no field is subscribed to.
    await pool.execute("UPDATE whatsapp_apps SET verified_at = now(), last_callback_at = NULL")
    assert "none has arrived yet" in (await root.get("/console/whatsapp")).words
    await pool.execute("UPDATE whatsapp_apps SET last_callback_at = now()")
    assert "none has arrived yet" not in (await root.get("/console/whatsapp")).words
    page = await root.get(f"{here}/pause")
    assert "Nothing is sent from its 1 number until it is resumed." in page.words
    page = await root.submit(page, f"{here}/pause")
    assert "It is paused" in page.words
    page = await root.submit(page, f"{here}/resume")
    assert "It is sending again." in page.words
    async with pool.acquire() as conn, conn.transaction():
        of, id = await conn.fetchrow("SELECT organization_id, id FROM whatsapp_accounts")
        number = await conn.fetchval("SELECT id FROM whatsapp_numbers")
        await holds.hold_account(conn, of, id, seconds=3600, reason="policy")
        await holds.hold_number(conn, of, number, seconds=3600, reason="quality")
    page = await root.get(here)
    assert "held: policy" in page.words
    assert "What to do" in page.words
    page = await root.submit(page, f"/console/whatsapp/numbers/{of}/{number}/release")
    assert "The hold is over" in page.words
    page = await root.submit(page, f"{here}/release")
    assert "The hold is over" in page.words
    assert "held: policy" not in page.words
    page = await root.submit(page, f"{here}/sync")
    assert "It has been read again." in page.words
    template = await pool.fetchval("SELECT id FROM whatsapp_templates ORDER BY id LIMIT 1")
    at = f"/console/whatsapp/templates/{of}/{template}"
    page = await root.post(at, page.form(at) | {"do": "disable"})
    assert "disabled here" in page.words
    page = await root.post(at, page.form(at) | {"do": "enable"})
    assert "disabled here" not in page.words
    # There is no address to copy yet.
    assert "HELIOGRAPH_PUBLIC_URL is not set" in page.words
    assert "https://YOUR-ADDRESS/in/whatsapp/" in page.text
    graph.set_token("new-token")
    for token, status, said in (
        ("", 422, "Paste the token."),
        ("unheard-of", 422, "rejects this token"),
        ("new-token", 200, "works"),
    ):
        page = await root.submit(await root.get(here), f"{here}/token", token=token)
        assert (page.status, said in page.words) == (status, True), page.words
    # Someone who may only view gets no verify token and no button.
    await signed_in(pool, other_browser, "auditor", "rui@example.com")
    seen = await other_browser.get(here)
    assert seen.status == 200
    assert "verify-token" not in seen.text
    assert f'action="{here}' not in seen.text


async def test_the_secret_of_an_app_is_changed_after_it_was_changed_at_meta(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser, graph: GraphSimulator
) -> None:
    await connected(root, graph)
    of, one = await pool.fetchrow("SELECT organization_id, id FROM whatsapp_accounts")
    here = f"/console/whatsapp/accounts/{of}/{one}"
    page = await root.get(f"{here}/app")
    assert graph.options.app_secret not in page.text
    for typed_, said in (
        ({}, "Give the app's new secret"),
        ({"app_secret": "x" * 201}, "1 to 200 printable characters"),
        ({"verify_token": "a\x07b"}, "1 to 200 printable characters"),
    ):
        wrong = await root.submit(page, f"{here}/app", **typed_)
        assert (wrong.status, said in wrong.words) == (422, True), wrong.words
    done = await root.submit(page, f"{here}/app", app_secret="changed at Meta")
    assert (done.path, "Saved: it takes effect" in done.words) == (here, True)
    async with pool.acquire() as conn:
        app = await apps.get_app(conn, KEY, await conn.fetchval("SELECT id FROM whatsapp_apps"))
    assert app.secrets == (b"changed at Meta", graph.options.app_secret.encode())
    told = await pool.fetchrow("SELECT who, after FROM audit_log WHERE action = 'whatsapp_app.changed'")
    assert told["who"] == "operator"
    assert "changed at Meta" not in told["after"]
    await signed_in(pool, other_browser, "auditor", "rui@example.com")
    assert (await other_browser.get(f"{here}/app")).status == 403
    assert f"{here}/app" not in (await other_browser.get(here)).text


async def test_name_and_address_of_an_account_are_changed_after_the_difference_was_shown(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser, graph: GraphSimulator
) -> None:
    here = f"{(await connected(root, graph)).path}/edit"
    form = await root.get(here)
    same = await root.submit(form, here)
    assert "Nothing was changed." in same.words
    for changed, said in (
        ({"base_url": "http://graph.example.com"}, "begins with https://"),
        ({"api_version": "25"}, "looks like v25.0"),
        ({"name": "x" * 201}, "at most 200"),
        ({"name": "a\u202eb"}, "all of them visible"),
    ):
        wrong = await root.submit(form, here, **changed)
        assert (wrong.status, said in wrong.words) == (422, True), wrong.words
        assert wrong.form(here).items() >= changed.items(), "what was typed stays"
    shown = await root.submit(form, here, name="Loja", api_version="v26.0")
    assert "2 settings change" in shown.words
    assert "v25.0 v26.0" in shown.words
    kept = "SELECT name, base_url, api_version FROM whatsapp_accounts"
    assert tuple(await pool.fetchrow(kept)) == ("Demo", graph.base_url, "v25.0"), "nothing is kept yet"
    again = await root.submit(shown, here, do="again")
    assert again.form(here)["api_version"] == "v26.0"
    # Somebody else was faster: the difference that was shown is not what would be saved.
    await pool.execute("UPDATE whatsapp_accounts SET name = 'Shop'")
    late = await root.submit(shown, here, do="save")
    assert (late.status, "in the meantime" in late.words) == (422, True), late.words
    assert tuple(await pool.fetchrow(kept)) == ("Shop", graph.base_url, "v25.0")
    shown = await root.submit(late, here)
    done = await root.submit(shown, here, do="save")
    assert "Saved: it takes effect" in done.words
    assert "v26.0" in done.words
    assert tuple(await pool.fetchrow(kept)) == ("Loja", graph.base_url, "v26.0")
    told = await pool.fetchrow("SELECT who, before, after FROM audit_log WHERE action = 'whatsapp_account.changed'")
    assert told["who"] == "operator"
    assert "v25.0" in told["before"]
    assert "v26.0" in told["after"]
    # An emptied field is reset to its default.
    emptied = await root.submit(await root.get(here), here, base_url="", api_version="")
    assert "https://graph.facebook.com" in emptied.words
    await signed_in(pool, other_browser, "auditor", "rui@example.com")
    assert (await other_browser.get(here)).status == 403


async def test_an_account_is_removed_once_its_id_was_typed(
    pool: Pool, tenant: Tenant, root: Browser, graph: GraphSimulator
) -> None:
    page = await connected(root, graph)
    here = f"{page.path}/remove"
    asked = await root.get(here)
    assert "its 1 number can no longer send" in asked.words
    wrong = await root.submit(asked, here, typed="yes")
    assert (wrong.status, "not the text that has to be typed" in wrong.words) == (422, True)
    assert await pool.fetchval("SELECT state FROM whatsapp_accounts") == "active"
    done = await root.submit(wrong, here, typed=graph.options.waba)
    assert (done.path, "is removed." in done.words) == ("/console/whatsapp", True)
    assert await pool.fetchval("SELECT state FROM whatsapp_accounts") == "removed"
    assert (await root.get(page.path)).status == 404


async def test_a_callback_is_simulated_and_its_organization_can_read_so(
    pool: Pool, tenant: Tenant, root: Browser, graph: GraphSimulator
) -> None:
    page = await connected(root, graph)
    here = f"{page.path}/simulate"
    form = await root.get(here)
    (number,) = [str(row["id"]) for row in await pool.fetch("SELECT id FROM whatsapp_numbers")]
    writes = {"number": number, "what": "message", "from": "+258841234567", "text": "Onde está?"}
    for changed, said in (
        ({"from": "841"}, "country code"),
        ({"number": str(UUID(int=1))}, "Choose one of its numbers."),
        ({"what": "status", "message": "x", "status": "read"}, "An id looks like"),
        ({"what": "status", "message": str(UUID(int=1)), "status": "read"}, "No such message was sent"),
        ({"what": "status", "message": str(UUID(int=1)), "status": "eaten"}, "must be one of"),
        ({"text": "x" * 4097}, "at most"),
        ({"from": "841", "text": "x" * 4097}, "at most"),
        ({"what": "status", "message": "x", "status": "eaten"}, "must be one of"),
    ):
        wrong = await root.submit(form, here, **writes | changed)
        assert (wrong.status, said in wrong.words) == (422, True), wrong.words
        kept = "message" if "status" in changed else "from"
        assert wrong.form(here)[kept] == (writes | changed)[kept], "what was typed stays"
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_callbacks") == 0
    done = await root.submit(form, here, **writes)
    assert "It came in" in done.words
    inbox = Inbox(pool, KEY, rates.RateBook(pool), on_deliveries=lambda: None)
    assert await inbox.round() == 1
    row = await pool.fetchrow("SELECT organization_id, recipient, direction, content FROM whatsapp_messages")
    assert (row["organization_id"], row["recipient"], row["direction"]) == (tenant.id, "+258841234567", "inbound")
    assert "Onde está?" in row["content"]
    told = await pool.fetch(
        "SELECT who, organization_id, after::text FROM audit_log WHERE action = 'callback.simulated' ORDER BY id"
    )
    assert [(row["who"], row["organization_id"]) for row in told] == [("operator", tenant.id)]
    assert "258841234567" not in told[0]["after"], "numbers are cut in the log"


async def test_items_that_could_not_be_applied_show_nobodys_words(pool: Pool, root: Browser) -> None:
    here = "/console/whatsapp/callbacks"
    assert "Everything that arrived was applied" in (await root.get(here)).words
    item = MessageItem(
        waba_id="900",
        phone_number_id="901",
        wamid="wamid.HBgMMjU4ODQxMjM0NTY3",
        sender="258841234567",
        at=clock.now(),
        type="text",
        text="my code is 4711",
        profile_name="Ana Macuácua",
    )
    letters = [
        DeadLetter(UUID(int=1), clock.now(), "no such account", dead_letters.raw_of(item)),
        DeadLetter(UUID(int=1), clock.now(), "not JSON", b"my code is 4711"),
    ]
    async with pool.acquire() as conn, conn.transaction():
        await dead_letters.store(conn, KEY, letters)
    page = await root.get(here)
    for said in ("message", "no such account", "type=text", "waba_id=900", "not readable"):
        assert said in page.words, said
    for hidden in ("my code", "258841234567", "Ana Macuácua", "HBgMMjU4"):
        assert hidden not in page.text, hidden
    (one, two) = [row["id"] for row in await pool.fetch("SELECT id FROM whatsapp_dead_letters ORDER BY id")]
    single = await root.get(f"{here}/{one}")
    for said in (
        "no such account",
        '"phone_number_id": "901"',
        '"sender": "…4567"',
        '"text": "[15]"',
        '"type": "text"',
    ):
        assert said in html.unescape(single.text), said
    for hidden in ("my code", "258841234567", "Ana Macuácua", "HBgMMjU4"):
        assert hidden not in single.text, hidden
    single = await root.get(f"{here}/{two}")
    assert ("It is not JSON" in single.words, "my code" in single.text) == (True, False)
    page = await root.submit(page, f"{here}/retry")
    assert ("0 of 2 are applied." in page.words, page.is_refusal) == (True, True)
    (id, *_) = [row["id"] for row in await pool.fetch("SELECT id FROM whatsapp_dead_letters ORDER BY id")]
    page = await root.submit(page, f"{here}/{id}/drop")
    assert "It is given up." in page.words
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_dead_letters") == 1
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'callback.dropped'") == 1


async def test_items_that_could_not_be_applied_are_read_page_by_page(
    pool: Pool, root: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the newest hundred could be neither seen nor given up, and were counted one by one every minute."""
    here, reasons = "/console/whatsapp/callbacks", [f"reason {n} ends" for n in range(30)]
    async with pool.acquire() as conn, conn.transaction():
        await dead_letters.store(conn, KEY, [DeadLetter(UUID(int=1), clock.now(), one, b"{}") for one in reasons])
    newest = await root.get(f"{here}?limit=25")
    (older,) = re.findall('rel="next" href="([^"]+)"', newest.text)
    oldest = await root.get(html.unescape(older))
    shown = [[one for one in reasons if one in page.words] for page in (newest, oldest)]
    assert (len(shown[0]), len(shown[1])) == (25, 5)
    assert sorted(shown[0] + shown[1]) == sorted(reasons)
    assert 'rel="prev"' in oldest.text
    assert "Could not be applied 30" in oldest.words, "of all pages"
    monkeypatch.setattr(dead_letters, "COUNTED", 20)
    assert "Could not be applied more than 20" in (await root.get(here)).words
    async with pool.acquire() as conn:
        (check,) = [one for one in await checks.run(conn, Settings(secret_key="k" * 40)) if one.check == "callbacks"]
    assert check.detail == "callback items that could not be applied: more than 20"


async def test_an_item_of_another_secret_key_hides_none_of_the_others(pool: Pool, root: Browser) -> None:
    """The page of all items used to be an unexpected error."""
    here = "/console/whatsapp/callbacks"
    other = apps.seal_key(Settings(secret_key="?" * 32))
    async with pool.acquire() as conn, conn.transaction():
        await dead_letters.store(conn, KEY, [DeadLetter(UUID(int=1), clock.now(), "no such account", b"{}")])
        await dead_letters.store(conn, other, [DeadLetter(UUID(int=1), clock.now(), "not JSON", b"{}")])
    page = await root.get(here)
    for said in ("no such account", "not JSON", "0 bytes"):
        assert said in page.words, said
    (_, locked) = [row["id"] for row in await pool.fetch("SELECT id FROM whatsapp_dead_letters ORDER BY id")]
    assert "encrypted under a key that is not available here" in (await root.get(f"{here}/{locked}")).words
    page = await root.submit(page, f"{here}/retry")
    assert ("0 of 2 are applied." in page.words, page.is_refusal) == (True, True)


async def test_one_item_is_tried_again_by_itself(pool: Pool, root: Browser) -> None:
    here, app, waba = "/console/whatsapp/callbacks", await whatsapp_factories.make_app(pool), "900"
    item = AccountItem(waba_id=waba, field="account_update", at=clock.now(), fingerprint="00", event="PARTNER_ADDED")
    async with pool.acquire() as conn, conn.transaction():
        letters = [DeadLetter(app, clock.now(), "unknown account", dead_letters.raw_of(item))] * 2
        await dead_letters.store(conn, KEY, letters)
    one, other = [row["id"] for row in await pool.fetch("SELECT id FROM whatsapp_dead_letters ORDER BY id")]
    page = await root.get(f"{here}/{one}", Cookie="hg-language=pt")
    assert "conta desconhecida" in page.words
    page = await root.get(f"{here}/{one}")
    page = await root.submit(page, f"{here}/{one}/retry")
    assert ("It still cannot be applied." in page.words, page.path) == (True, f"{here}/{one}")
    tenant = await make_tenant(pool)
    await whatsapp_factories.account(pool, tenant.id, app)
    await pool.execute("UPDATE whatsapp_accounts SET waba_id = $1", waba)
    page = await root.submit(page, f"{here}/{one}/retry")
    assert ("It is applied." in page.words, page.path) == (True, here)
    assert [row["id"] for row in await pool.fetch("SELECT id FROM whatsapp_dead_letters")] == [other]
    assert (await root.get(f"{here}/{one}")).status == 404


async def send_file(root: Browser, text: bytes, do: str, *, as_file: bool = True, checked: str = "") -> Page:
    here = "/console/rates/whatsapp/import"
    fields = (await root.get(here)).form(here)
    form = aiohttp.FormData(default_to_multipart=True)
    for name in ("_token", "_once"):
        form.add_field(name, fields[name])
    if checked:
        form.add_field("checked", checked)
    form.add_field("do", do)
    if as_file:
        form.add_field("file", text, filename="rates.csv", content_type="text/csv")
    form.add_field("text", "" if as_file else text.decode())
    headers = {"Origin": root.base_url, "Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    async with root.session.post(root.base_url + here, data=form, headers=headers) as answer:
        return Page(answer, await answer.text())


async def test_rates_are_checked_and_imported(pool: Pool, root: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    good = (
        b"currency,category,country,valid_from,price\nEUR,utility,MZ,2026-01-01,0.02\nEUR,utility,*,2026-01-01,0.03\n"
    )
    bad = b"currency,category,country,valid_from,price\nEUR,utility,MZ,2026-01-01,much\nEUR,gossip,*,2026-01-01,0.03\n"
    page = await send_file(root, bad, "import")
    assert page.status == 422
    assert 'href="/console/whatsapp/callbacks"' not in page.text, "it is a page of rates"
    assert "2 lines are wrong" in page.words
    assert "Line 2" in page.words
    assert "Line 3" in page.words
    page = await send_file(root, good, "check")
    assert "would add 2, change 0 and leave 0" in page.words
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_rates") == 0
    # The checked text is there to be imported.
    assert "EUR,utility,MZ" in page.text
    checked = page.form("/console/rates/whatsapp/import")["checked"]
    page = await send_file(root, good.replace(b"0.03", b"0.05"), "import", checked=checked)
    assert (page.status, "It was changed after it was checked." in page.words) == (422, True), page.words
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_rates") == 0
    page = await send_file(root, good, "import", as_file=False, checked=checked)
    assert "Imported: 2 new, 0 changed, 0 as they were." in page.words
    page = await send_file(root, good.replace(b"0.03", b"0.04"), "check")
    assert "would add 0, change 1 and leave 1" in page.words
    async with pool.acquire() as conn:
        assert [one.price for one in await rates.list_rates(conn)] == [30_000, 20_000]
    # It is parsed outside the event loop, so that other requests are served meanwhile.
    read, on_loop = rates.read_rates, []

    def noted(lines: Iterable[str]) -> list[Rate]:
        with suppress(RuntimeError):
            on_loop.append(asyncio.get_running_loop())
        return read(lines)

    monkeypatch.setattr(rates, "read_rates", noted)
    assert "would add 0, change 0 and leave 2" in (await send_file(root, good, "check")).words
    assert not on_loop
    assert "and leave 2" in (await send_file(root, good.decode().encode("utf-16"), "check")).words
    for text, said in ((b"", "Choose a file"), (b"\xff\xfe\x00", "UTF-8"), (b"a" * 2_000_001, "2 MB")):
        wrong = await send_file(root, text, "check")
        assert (wrong.status, said in wrong.words) == (422, True), said
