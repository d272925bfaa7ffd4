"""The audit log on a page: filtered, paged in both directions, exported completely, without naming operators."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from datetime import timedelta

import msgspec
import pytest

from heliograph.accounts import organizations, quota
from heliograph.audit import reading
from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.overview.exports import kinds
from heliograph.pages.lists import pagination
from heliograph.whatsapp.money import wallet
from tests.hooks import endpoint, until

from .conftest import Api, Browser, Page, Tenant, make_person, make_tenant
from .exported import fetch

SHELL = Principal("cli", name="alice", address="192.0.2.1", device="shell", reason="ticket 7")


def actions(page: Page) -> list[str]:
    """The text of the first cells."""
    body = page.text.partition("<tbody>")[2]
    return re.findall(r"<tr><td><strong>([^<]*)</strong>", body)


async def test_what_was_changed_is_read_before_and_after(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with pool.acquire() as conn:
        await organizations.rename(conn, id=tenant.id, name="<b>Bakery</b>", by=SHELL)
    page = await owner.get("/audit")
    assert actions(page)[0] == "Organization renamed"
    assert "<del>Acme</del>" in page.text
    assert "<ins>&lt;b&gt;Bakery&lt;/b&gt;</ins>" in page.text
    assert "Reason: ticket 7" in page.words
    # Customers see that the operator did it, but not who, nor from where; and nobody can find out by searching for a
    # name.
    assert "the operator" in page.words
    assert not re.search("alice|192\\.0\\.2\\.1", page.text)
    page = await owner.get("/audit?who=alice")
    assert (actions(page), "Nothing matches" in page.words) == ([], True)
    assert actions(await owner.get("/audit?who=operator")) == actions(await owner.get("/audit?who=cli"))
    assert "Organization renamed" in actions(await owner.get("/audit?who=operator"))


async def test_of_something_new_only_what_it_has_is_listed(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    new = {"channel": "sms", "audience_tags": [], "scheduled_at": None, "recipients": 0, "adaptive": False}
    id = uuid7()
    async with pool.acquire() as conn:
        for before, after in ((None, new), ({"note": "call them"}, {"note": None})):
            await audit.record(
                conn, SHELL, "campaign.created", organization_id=tenant.id, object_id=id, before=before, after=after
            )
    words = (await owner.get(f"/audit?object={id}")).words
    assert "Channel: SMS Recipients: 0 Adaptive: no" in words
    assert "Note: call them → –" in words


async def test_values_have_the_names_of_the_forms_and_are_in_the_readers_language(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    id, start = uuid7(), clock.EPOCH + timedelta(days=20_000, hours=10)
    before: dict[str, object] = {"status": "scheduled", "scheduled_at": None, "recipients": 1_000, "text_days": 7}
    before |= {"validity_seconds": 3600, "guarantee": "at_most_once", "allowed_countries": ["MZ"]}
    after: dict[str, object] = {"status": "paused", "scheduled_at": start, "recipients": 25_000, "text_days": 30}
    after |= {"validity_seconds": 7200, "guarantee": "at_least_once", "allowed_countries": ["MZ", "ZA"]}
    chosen: dict[str, object] = {"campaign.paused": ["bell", "mail"]}
    async with pool.acquire() as conn:
        for changed in (after | {"status_reason": "quota_exceeded"}, chosen):
            await audit.record(
                conn,
                SHELL,
                "campaign.moved",
                organization_id=tenant.id,
                object_id=id,
                before=before if "status" in changed else {},
                after=changed,
            )
    words = re.sub(r"[\u00a0\u202f]", " ", (await owner.get(f"/audit?object={id}", **{"accept-language": "pt"})).words)
    for said in (
        "Estado: Agendada → Pausado",
        "Agendada: 4 out. 2024, 10:00",
        "Destinatários: 1 000 → 25 000",
        "Os textos são guardados durante: 7 dias → 30 dias",
        "Válida durante: 1 h → 2 h",
        "Países para onde se pode enviar: Moçambique → Moçambique, África do Sul",
        "Uma campanha está parada: Sino, Correio",
    ):
        assert said in words, said
    async with pool.acquire() as conn:
        about = {"organization_id": tenant.id, "object_id": id}
        for amount in (1_000_500_000, 2_000_000):
            await wallet.top_up(conn, tenant.id, amount=amount, currency="EUR")
        await audit.record(conn, SHELL, "wallet.alert_changed", after={"below": "5.000000", "currency": "EUR"}, **about)
    paid, booked = [
        re.sub(r"[\u00a0\u202f]", " ", (await owner.get(f"/audit?object={one}", **{"accept-language": "pt"})).words)
        for one in (id, tenant.id)
    ]
    assert "Aviso abaixo de: 5,00 €" in paid
    # The first one chose the currency; it is said of the amounts of all of them.
    assert "Saldo: 0,00 € → 1 000,50 € Moeda: EUR" in booked
    assert "Saldo: 1 000,50 € → 1 002,50 €" in booked
    assert booked.count("Moeda:") == 1
    for action, changed in (
        ("webhook.disabled", {"status": "disabled", "disabled_reason": "failing"}),
        ("contacts.imported", {"state": "begun", "kind": "opt_outs", "on_duplicate": "skip"}),
        ("contacts.imported", {"state": "finished"}),
        ("guard.configured", {"policy": "hold", "by_default": False, "limits": {"otp": 500}}),
    ):
        async with pool.acquire() as conn:
            await audit.record(conn, SHELL, action, after=changed, **about)
    told = (await owner.get(f"/audit?object={id}", **{"accept-language": "pt"})).words
    for said in (
        "Estado: Desativado Motivo: O endpoint foi desativado porque falhou durante dias.",
        "Estado: Em curso Tipo: Recusas Pessoas que já existem: Deixar",
        "Estado: Concluída",
        "Por predefinição: não Limites: Códigos de utilização única: 500",
    ):
        assert said in told, (said, told)
    assert not re.search(r"quota_exceeded|status|scheduled|\d{4}-\d\d-\d\dT", words.partition("Alterações")[2][:2000])


async def test_what_is_metas_or_the_operators_is_not_told(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """Of an account: its id at Meta, Meta's address, and Meta's warnings."""
    about, id = {"organization_id": tenant.id, "name": "our account"}, uuid7()
    inside = {"waba_id": "900100200300400", "portfolio": "900100200300500"}  # longer than what ids have in common
    inside |= {"base_url": "http://10.0.0.7:27857", "api_version": "v26.0"}
    async with pool.acquire() as conn:
        for action, before, after in (
            ("whatsapp_account.added", None, inside | {"name": "our account", "currency": "EUR"}),
            ("whatsapp_account.changed", inside, inside | {"base_url": "http://10.0.0.8:27857", "token": "secret"}),
            ("whatsapp_account.acknowledged", {"warnings": ["policy Meta says so"]}, None),
            ("whatsapp_account.state_changed", None, {"state": "paused"}),
        ):
            await audit.record(conn, SHELL, action, object_id=id, before=before, after=after, **about)
    page = await owner.get(f"/audit?object={id}")
    assert len(actions(page)) == 4
    assert "Currency: EUR" in page.words
    assert "State: Paused" in page.words
    file = await fetch(pool, owner, page, f"/audit/export?object={id}", format="csv")
    assert "our account" in file.text
    for shown in (page.text, file.text):
        assert not re.search("900100200300[45]00|10[.]0[.]0|v26|Meta says", shown)
    # Operators of the installation see all of it.
    async with pool.acquire() as conn:
        whole = await reading.list_page(conn, reading.Filter(object=str(id)), limit=10)
    assert "10.0.0.8" in "".join(f"{one.before} {one.after}" for one in whole.entries)


async def test_only_actions_that_its_log_can_contain_are_offered(owner: Browser) -> None:
    page = await owner.get("/audit")
    offered = set(re.findall(r'<option value="([a-z_]+)\.[a-z_]+"', page.text))
    assert {"contact", "campaign", "api_key"} <= offered
    # What an operator does to the installation is in no organization's log.
    assert not offered & {"backup", "installation", "lookup", "secrets", "supplier", "tariff", "worker"}


async def test_a_key_is_called_by_its_name(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    status, _, _ = await api.ask(
        "POST", "/contacts", json={"name": "Ana", "phone": "+258841234567"}, headers=tenant.headers
    )
    assert status == 200
    await pool.execute("UPDATE api_keys SET name = 'the <shop>' WHERE id = $1", tenant.key_id)
    page = await owner.get("/audit?action=contact.created")
    link = rf'<a [^>]*href="/audit[?]who={tenant.key_id}"[^>]*>the &lt;shop&gt;</a>'
    assert re.search(link, page.text), page.text[page.text.index("<tbody>") :][:900]
    assert "the <shop> an API key" in page.words
    assert actions(await owner.get(f"/audit?who={tenant.key_id}")) == ["Contact created"]


async def test_filters_find(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await owner.submit(await owner.get("/senders/new"), "/senders", value="BAKERY")
    for query, wanted in (
        ("who=Ana&action=sender_id.requested", ["Sender ID requested"]),
        ("object=bakery", ["Sender ID requested"]),
        ("object=nobody", []),
        ("who=Ana&action=api_key.created", []),
        ("action=sender_id.requested&from=2001-01-01&to=2001-01-02", []),
        ("object=bakery&from=2001-01-01&to=2999-12-31", ["Sender ID requested"]),
    ):
        assert actions(await owner.get(f"/audit?{query}")) == wanted, query
    page = await owner.get("/audit?object=bakery")
    everything = re.search(r'href="(/audit\?object=[0-9a-f-]{36})"', page.text)
    assert everything
    assert actions(await owner.get(everything[1])) == ["Sender ID requested"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("from=tomorrow", "from"),
        ("to=2027-02-30", "to"),
        ("to=0001-01-01", "to"),
        ("from=9999-12-31", "from"),
        ("action=no_such.action", "action"),
    ],
)
async def test_what_cannot_be_understood_is_said_at_its_field(owner: Browser, query: str, field: str) -> None:
    page = await owner.get(f"/audit?{query}")
    assert (page.status, f'id="{field}-wrong"' in page.text) == (422, True)
    page = await owner.post(f"/audit/export?{query}", (await owner.get("/audit")).form("/audit/export"))
    assert (page.status, f'id="{field}-wrong"' in page.text) == (422, True)


async def test_a_day_is_one_of_the_reader(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """An entry at 23:30 UTC belongs to the next day in Maputo, two hours ahead."""
    await pool.execute("UPDATE users SET time_zone = 'Africa/Maputo'")
    # Sessions are known for half a second.
    while "Africa/Maputo" not in (await owner.get("/audit")).text:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await owner.submit(await owner.get("/senders/new"), "/senders", value="BAKERY")
    at = await pool.fetchval("SELECT at FROM audit_log WHERE action = 'sender_id.requested' AND object_name = 'BAKERY'")
    day = (at + timedelta(hours=2)).date()
    found = await owner.get(f"/audit?object=bakery&from={day}&to={day}")
    assert actions(found) == ["Sender ID requested"]
    for other in (day - timedelta(days=1), day + timedelta(days=1)):
        assert actions(await owner.get(f"/audit?object=bakery&from={other}&to={other}")) == []


async def test_pages_lead_both_ways_and_show_each_entry_once(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagination, "USUAL", 2)
    async with pool.acquire() as conn:
        for number in range(5):
            await organizations.rename(conn, id=tenant.id, name=f"Acme {number}", by=SHELL)
    pages = [await owner.get("/audit?action=organization.renamed")]
    while older := re.search(r'rel="next" href="([^"]+)"', pages[-1].text):
        pages.append(await owner.get(older[1].replace("&amp;", "&")))
    shown = [re.findall(r"<ins>(Acme \d)</ins>", page.text) for page in pages]
    assert shown == [["Acme 4", "Acme 3"], ["Acme 2", "Acme 1"], ["Acme 0"]]
    back = re.search(r'rel="prev" href="([^"]+)"', pages[-1].text)
    assert back
    assert re.findall(r"<ins>(Acme \d)</ins>", (await owner.get(back[1].replace("&amp;", "&"))).text) == shown[1]
    # A made-up position starts with the newest entry.
    page = await owner.get("/audit?action=organization.renamed&after=nonsense")
    assert re.findall(r"<ins>(Acme \d)</ins>", page.text) == shown[0]


async def test_an_export_holds_all_that_fits_and_computes_nothing(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "PAGE", 2)
    async with pool.acquire() as conn:
        for name in ("=cmd|' /C calc'!A0", "Acme 1", "Acme 2"):
            await organizations.rename(conn, id=tenant.id, name=name, by=SHELL)
        await quota.grant(conn, (await make_tenant(pool)).id, amount=7, reason="theirs")
    page = await owner.get("/audit?action=organization.renamed")
    where = "/audit/export?action=organization.renamed"
    form = page.form(where)
    answer = await fetch(pool, owner, page, where, format="csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="audit-log.csv"'
    assert answer.text.startswith("\ufeff")
    rows = list(csv.DictReader(io.StringIO(answer.text.removeprefix("\ufeff"))))
    assert [row["object_name"] for row in rows] == ["Acme 2", "Acme 1", "'=cmd|' /C calc'!A0"]
    assert {(row["who"], row["who_name"], row["address"]) for row in rows} == {("operator", "", "")}
    answer = await fetch(pool, owner, await owner.get("/audit"), "/audit/export", format="json")
    told = [msgspec.json.decode(line) for line in answer.text.splitlines()]
    assert [one["action"] for one in told[:2]] == ["audit.exported", "export.fetched"]
    assert told[0]["who_name"] == "Ana"
    assert told[2]["after"]["action"] == "organization.renamed"
    assert {one["organization_id"] for one in told} == {str(tenant.id)}
    assert "theirs" not in answer.text
    await owner.post("/preferences", {"_token": form["_token"], "language": "pt", "next": "/"})
    await pool.execute("UPDATE users SET language = 'pt'")
    answer = await fetch(pool, owner, await owner.get("/audit"), "/audit/export", format="csv")
    assert answer.text.startswith("\ufeffid;organization_id;at;")


async def test_only_owners_and_admins_come_in(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    await make_person(pool, tenant, "dev@example.com", "developer")
    await browser.sign_in("dev@example.com")
    assert (await browser.get("/audit")).status == 403
    assert 'href="/audit"' not in (await browser.get("/")).text


async def test_every_thing_has_its_own_slice(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """Someone who may read the log gets from an object's page to its history."""
    await owner.submit(await owner.get("/senders/new"), "/senders", value="BAKERY")
    page = await owner.submit(await owner.get("/texts/new"), "/texts", name="Hours", body="We open at 8.")
    bo = await make_person(pool, tenant, "bo@example.com", role="sender")
    hook, _ = await endpoint(pool, tenant.actor, "https://example.com/hook")
    text, sender = [await pool.fetchval(f"SELECT id FROM {table}") for table in ("saved_texts", "sender_ids")]
    pages = {
        f"/webhooks/{hook}": (hook, "Webhook endpoint created"),
        f"/texts/{text}": (text, "Text saved"),
        f"/team/members/{bo.id}": (bo.id, "Member added"),
        "/senders": (sender, "Sender ID requested"),
        "/keys": (tenant.key_id, "API key created"),
        "/settings": (tenant.id, "Settings changed"),
    }
    await owner.submit(await owner.get("/settings"), "/settings/general", name="Acme", country="MZ")
    for path, (id, action) in pages.items():
        page = await owner.get(path)
        assert f'href="/audit?object={id}"' in page.text, path
        found = actions(await owner.get(f"/audit?object={id}"))
        assert action in found, (path, found)
    assert f'href="/audit?who={bo.id}"' in (await owner.get(f"/team/members/{bo.id}")).text
    await other_browser.sign_in("bo@example.com")
    for path in ("/senders", f"/texts/{text}"):
        page = await other_browser.get(path)
        assert (page.status, "/audit?object=" in page.text) == (200, False), path


async def test_an_entry_leads_to_its_request(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    status, headers, _ = await api.ask(
        "POST", "/contacts", json={"name": "Ana", "phone": "+258841234567"}, headers=tenant.headers
    )
    assert status == 200

    async def is_written() -> bool:
        return bool(await pool.fetchval("SELECT count(*) FROM requests"))

    await until(is_written)
    asked = headers["x-request-id"]
    page = await owner.get("/audit?action=contact.created")
    assert f'href="/requests?q={asked}"' in page.text
    assert "POST /contacts" in (await owner.get(f"/requests?q={asked}")).words
