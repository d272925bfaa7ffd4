"""Files on pages: uploaded, read, mapped, checked, run by a worker that may be killed, corrected and undone."""

from __future__ import annotations

import random
import re
import threading
from array import array
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import aiohttp
import msgspec
import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7_floor
from heliograph.campaigns.channels import sms
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.campaigns.staging import Stager
from heliograph.consent.importing import OptOutImports
from heliograph.contacts import importing, records
from heliograph.contacts.imports import drafts, running, survey
from heliograph.contacts.imports.drafts import ImportMoved
from heliograph.contacts.imports.running import Runner
from heliograph.contacts.imports.survey import Numbers
from heliograph.contacts.records import Entry
from heliograph.dashboard.audience import words
from heliograph.overview.exports import kinds
from heliograph.retention.rules import DELETE_CHUNKS
from tests.rules.test_contacts import APART

from .conftest import Browser, Page, Tenant, make_person, make_tenant
from .exported import fetch

MESSY = (
    "\ufeffTelemóvel;Primeiro nome;Apelido;Etiquetas\r\n"
    '+258841234567;"João\r\n da Beira";Silva;VIP, Maputo\r\n'
    "84 123 4568;Ana;;\r\n"
    ";Sem;Número;\r\n"
    "2,58841E+11;Eva;;\r\n"
    "84 123 4568;Ana;Costa;\r\n"
    "abc;Rui;;\r\n"
    ";;;\r\n"
)


async def send(browser: Browser, content: bytes, *, name: str = "people.csv", **fields: str) -> Page:
    """Step 1, as a browser without scripts sends it."""
    action = "/contacts/import" + (f"?kind={fields['kind']}" if "kind" in fields else "")
    form = (await browser.get(action)).form(action)
    data = aiohttp.FormData(quote_fields=False)
    for field, value in (form | fields).items():
        if field not in ("file", "text"):
            data.add_field(field, value)
    pasted = name == ""
    data.add_field("file", b"" if pasted else content, filename=name, content_type="text/csv")
    data.add_field("text", content.decode() if pasted else "")
    headers = {"Origin": browser.base_url, "Accept": "text/html"}
    async with browser.session.post(browser.base_url + action, data=data, headers=headers) as answer:
        return Page(answer, await answer.text())


async def work(pool: Pool, **options: Any) -> None:
    """Do a worker's work, until there is nothing left to do."""
    runner = Runner(pool, {"opt_outs": OptOutImports()}, **options)
    while await runner.round():
        pass
    await runner.close()


async def to_check(pool: Pool, browser: Browser, content: bytes, *, name: str = "people.csv", **mapped: str) -> Page:
    """Steps 1 to 4."""
    page = await send(browser, content, name=name)
    assert page.path.endswith("/read"), page.words
    page = await browser.submit(page, page.path)
    assert page.path.endswith("/map"), page.words
    page = await browser.submit(page, page.path, **mapped)
    assert page.path.endswith("/check"), page.words
    await work(pool)
    return await browser.get(page.path)


def aloud(page: Page) -> list[str]:
    """What a screen reader announces when the refreshed part changes: nothing that changes with each refresh."""
    part = page.text.partition('<div id="state"')[2].partition('<p class="renewed')[0]
    assert "aria-live" not in part
    said = re.findall(r'<p class="[^"]*" role="status">(.*?)</p>', part, re.S)
    return [re.sub(r"<[^>]+>|[◔○●✕⧗–]", "", one).strip() for one in said]


async def test_a_messy_file_in_five_steps(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pool.execute("UPDATE organizations SET country = 'MZ' WHERE id = $1", tenant.id)
    page = await send(owner, MESSY.encode())
    read = page.path
    assert ("utf-8-sig" in page.text, "João" in page.words) == (True, True)
    assert "Silva;VIP" in (await owner.get(f"{read}?delimiter=comma")).words
    page = await owner.submit(page, read)
    # A national number is read in the organization's own country, and shown before and after.
    assert all(said in page.words for said in ("84 123 4568", "+258841234568")), page.words
    assert [page.form(page.path)[f"column-{at}"] for at in range(4)] == ["phone", "first_name", "last_name", "tags"]
    none = await owner.get(f"{page.path}?country=&on_duplicate=update&column-0=phone")
    assert "rejected" in none.words
    page = await owner.submit(page, page.path, tags="spring")
    assert ("is being checked" in page.words, aloud(page)) == (True, ["Being checked"])
    await work(pool)
    page = await owner.get(page.path)
    assert aloud(page) == ["Waiting for you"]
    for said in ("Rows 6", "New 2", "Twice in the file 1", "Rejected rows 3", "Mozambique 2", "Import 3 rows"):
        assert said in page.words, (said, page.words)
    assert page.words.index("There is no phone number") < page.words.index("has rounded the phone number")
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 0
    id = page.path.split("/")[3]
    page = await owner.submit(page, f"/contacts/imports/{id}/run")
    await work(pool)
    page = await owner.get(page.path)
    for said in ("Finished", "Rows 6", "New 2", "Unchanged or repeated 1", "Rejected rows 3"):
        assert said in page.words, (said, page.words)
    rows = await pool.fetch("SELECT phone, name, tags FROM contacts ORDER BY phone")
    assert [tuple(row) for row in rows] == [
        ("+258841234567", "João da Beira Silva", ["vip", "maputo", "spring"]),
        ("+258841234568", "Ana Costa", ["spring"]),
    ]
    assert await pool.fetchval("SELECT count(*) FROM contact_import_chunks") == 0
    monkeypatch.setattr(kinds, "PAGE", 2)  # several pages
    file = await fetch(pool, owner, page, f"/contacts/imports/{id}/rejects")
    assert [line.partition(";")[0] for line in file.text.splitlines()[1:]] == ["4", "5", "7"]
    assert "4;there is no phone number;;Sem;Número;" in file.text
    # One of three is corrected; the others stay, with their input.
    page = await owner.get(f"/contacts/imports/{id}/mend")
    page = await owner.submit(page, f"/contacts/imports/{id}/mend")
    assert "No row was imported: none of them is right yet." in page.words
    assert '<div class="notice"' not in page.text, "nothing was done"
    typed = {"cell-4-phone": "84 123 4570", "cell-7-phone": "still wrong"}
    page = await owner.submit(page, f"/contacts/imports/{id}/mend", **typed)
    assert ("1 row imported." in page.words, "still wrong" in page.text) == (True, True)
    assert (await owner.get(f"/contacts/imports/{id}")).words.count("Rejected rows 2") == 1
    assert f'href="/contacts/imports/{id}/undo"' in (await owner.get(f"/contacts/imports/{id}")).text
    page = await owner.get(f"/contacts/imports/{id}/undo")
    assert "3 contacts that it created are deleted. 0 contacts that it changed are restored." in page.words
    page = await owner.submit(page, f"/contacts/imports/{id}/undo")
    await work(pool)
    assert "Undone" in (await owner.get(page.path)).words
    told = await pool.fetch("SELECT object_name FROM audit_log WHERE action = 'contacts.import_undone'")
    assert [row["object_name"] for row in told] == ["people.csv"] * 2, "when it was asked for, and when it was done"
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 0
    assert "Undo the import" not in (await owner.get(page.path)).words


async def test_an_import_that_a_later_one_overlaps_is_undone_after_it(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """If it is undone first, it leaves alone what the later one changed, and cannot be undone again."""
    ids = []
    for name, row in (("first.csv", "Ana"), ("second.csv", "Eva")):
        page = await to_check(pool, owner, f"phone,name\n+258841234567,{row}\n".encode(), name=name)
        ids.append(page.path.split("/")[3])
        await owner.submit(page, f"/contacts/imports/{ids[-1]}/run")
        await work(pool)
    first, second = [f"/contacts/imports/{id}/undo" for id in ids]
    said = "Undo the later import second.csv first."
    assert said in (await owner.get(first)).words
    assert f'href="{second}"' in (await owner.get(first)).text
    # One of the command line has no page.
    await pool.execute("UPDATE contact_imports SET is_uploaded = false, size = NULL WHERE file = 'second.csv'")
    page = await owner.get(first)
    assert f"the operator can undo it: heliograph contacts undo {ids[1]}" in page.words
    assert f'href="{second}"' not in page.text
    await pool.execute("UPDATE contact_imports SET is_uploaded = true, size = 1 WHERE file = 'second.csv'")
    page = await owner.get(second)
    assert "the later import" not in page.words
    await owner.submit(page, second)
    await work(pool)
    page = await owner.get(first)
    assert "the later import" not in page.words
    await owner.submit(page, first)
    await work(pool)
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 0


async def test_before_an_import_is_undone_campaigns_that_go_to_its_people_are_named(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    page = await to_check(pool, owner, b"phone\n+258841234567\n")
    id = page.path.split("/")[3]
    await owner.submit(page, f"/contacts/imports/{id}/run")
    await work(pool)
    spec = SmsCampaignSpec(
        name="Spring sale",
        message_template="Hi",
        audience_import=UUID(id),
        scheduled_at=datetime.now(UTC) + timedelta(hours=1),
    )
    async with pool.acquire() as conn, conn.transaction():
        campaign = await sms.create(conn, tenant.actor, spec=spec, request_id="req")
    # Its page leads to the import, for whoever may see that.
    page, link = f"/campaigns/{campaign.id}", f'<a href="/contacts/imports/{id}">the people of an import</a>'
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    assert link in (await owner.get(page)).text
    shown = await other_browser.get(page)
    assert ("the people of an import" in shown.words, link in shown.text) == (True, False)
    # One of the command line has no page.
    await pool.execute("UPDATE contact_imports SET is_uploaded = false")
    assert link not in (await owner.get(page)).text
    await pool.execute("UPDATE contact_imports SET is_uploaded = true")
    said = "go to the people of this import: Spring sale. Once it is undone, they find nobody."
    where = f"/contacts/imports/{id}/undo"
    assert said in (await owner.get(where)).words
    await pool.execute("UPDATE campaigns SET status = 'running'")
    assert "Spring sale" not in (await owner.get(where)).words


async def test_a_pasted_sheet_without_a_header(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await to_check(pool, owner, b"+351912345678\tRui\n+258841234567\tAna\n", name="", **{"column-1": "name"})
    assert "New 2" in page.words
    id = page.path.split("/")[3]
    refused = await owner.submit(page, f"/contacts/imports/{id}/run")
    assert (refused.status, "Confirm that the numbers from other countries" in refused.words) == (422, True)
    assert await pool.fetchval("SELECT state FROM contact_imports") == "checked"
    await owner.submit(page, f"/contacts/imports/{id}/run", strangers="yes")
    await work(pool)
    assert await pool.fetchval("SELECT count(*) FROM contacts WHERE name IN ('Ana', 'Rui')") == 2


async def test_numbers_are_shown_as_the_import_reads_them(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """Not with the decimals that a spreadsheet adds, and not those that the import rejects."""
    await pool.execute("UPDATE organizations SET country = 'DE' WHERE id = $1", tenant.id)
    page = await send(owner, b'phone\n1701234567.0\n"=""1701234568"""\n27.11.2026\n')
    page = await owner.submit(page, page.path)
    for said, is_so in (("+491701234567", True), ("+4917012345670", False), ("+491701234568", True), ("+4927", False)):
        assert (said in page.words) is is_so, (said, page.words)


async def test_numbers_that_nobody_uses_have_to_be_confirmed(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await pool.execute("UPDATE organizations SET country = 'MZ' WHERE id = $1", tenant.id)
    # The second is a Portuguese national number and the third lacks a digit: as Mozambican ones they have a possible
    # length, but reach nobody.
    page = await to_check(pool, owner, b"phone\n841234567\n912345678\n84123456\n")
    for said in ("Mozambique 3", "2 numbers are not in any known range", "3 912345678 +258912345678"):
        assert said in page.words, (said, page.words)
    id = page.path.split("/")[3]
    refused = await owner.submit(page, f"/contacts/imports/{id}/run")
    assert (refused.status, "Confirm that the numbers outside all known ranges" in refused.words) == (422, True)
    await owner.submit(page, f"/contacts/imports/{id}/run", unused="yes")
    await work(pool)
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 3


async def test_an_encoding_that_does_not_fit_is_said_where_it_is_chosen(pool: Pool, owner: Browser) -> None:
    page = await send(owner, "phone,name\n+258841234567,João\n".encode())
    tried = await owner.get(f"{page.path}?encoding=utf-16")
    assert (tried.status, "The file cannot be read like this." in tried.words) == (200, True)
    refused = await owner.submit(page, page.path, encoding="utf-16")
    assert (refused.status, "The file cannot be read like this." in refused.words) == (422, True)
    # Without a byte order mark, and with non-ASCII letters at the start, so nothing shows its encoding.
    page = await send(owner, "Тел,name\n+258841234567,João\n".encode("utf-16-le"))
    assert "João" in (await owner.get(f"{page.path}?encoding=utf-16-le")).words


@pytest.mark.parametrize(
    ("encoding", "name"),
    [("cp1256", "محمد علي"), ("cp1251", "Иван"), ("cp1253", "Ελένη"), ("cp1254", "Şükrü"), ("mac_roman", "José")],
)
async def test_a_spreadsheets_own_encoding_can_be_chosen(owner: Browser, encoding: str, name: str) -> None:
    page = await send(owner, f"phone,name\n+258841234567,{name}\n".encode(encoding))
    assert name not in page.words  # read as Western European, unless another encoding is chosen
    assert name in (await owner.get(f"{page.path}?encoding={encoding}")).words
    assert name in (await owner.submit(page, page.path, encoding=encoding)).words  # among the samples of its columns


async def test_a_column_without_a_header_is_called_by_its_number(owner: Browser) -> None:
    page = await send(owner, b"phone,\n+258841234567,Ana\n")
    page = await owner.submit(page, page.path)
    assert "What “2” is mapped to" in page.words


async def test_nothing_is_said_of_numbers_that_are_not_there(owner: Browser) -> None:
    said = "All of the first numbers include their country code."
    for content, has_numbers in ((b"phone,name\n+258841234567,Ana\n", True), (b"phone,name\n", False)):
        page = await send(owner, content)
        assert (said in (await owner.submit(page, page.path)).words) is has_numbers


async def test_portuguese_counts_rows_and_people_in_the_plural(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await pool.execute("INSERT INTO opt_outs VALUES ($1, '+258841234567', now(), 'test')", tenant.id)
    page = await send(owner, b"phone\n+258841234567\nabc\n")
    page = await owner.submit(await owner.submit(page, page.path), page.path.replace("/read", "/map"))
    await work(pool)
    page = await owner.get(page.path, Accept_Language="pt")
    for said in ("Leitura", "Novos 1", "Já tinham recusado 1", "Linhas rejeitadas 1"):
        assert said in page.words, (said, page.words)
    assert not re.search("Lida|Recusou|Rejeitada ", page.words)


async def test_what_is_no_table_is_refused_with_a_way_out(pool: Pool, owner: Browser) -> None:
    for content, said in (
        (b"", "Choose a file that is not empty"),
        (b"PK\x03\x04" + bytes(400_000), "save the sheet as CSV"),
    ):
        page = await send(owner, content)
        assert (page.status, said in page.words) == (422, True)
    assert await pool.fetchval("SELECT count(*) FROM contact_imports") == 0
    assert await pool.fetchval("SELECT count(*) FROM contact_import_chunks") == 0


async def test_too_much_is_refused_before_it_is_kept(
    pool: Pool, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "LONGEST", 300_000)
    page = await send(owner, b"phone\n" + b"+258841234567\n" * 60_000)
    assert (page.status, "at most 200 MB" in page.words) == (422, True)
    assert await pool.fetchval("SELECT count(*) FROM contact_import_chunks") == 0


async def test_an_upload_needs_a_page_of_ours(pool: Pool, owner: Browser) -> None:
    data = aiohttp.FormData({"_token": "another's"})
    data.add_field("file", b"phone\n+258841234567\n", filename="people.csv")
    headers = {"Origin": owner.base_url, "Accept": "text/html"}
    async with owner.session.post(owner.base_url + "/contacts/import", data=data, headers=headers) as answer:
        assert answer.status == 403
    assert await pool.fetchval("SELECT count(*) FROM contact_imports") == 0


async def test_an_upload_has_few_parts(owner: Browser) -> None:
    """Parts without a name, or with the same one, used to be counted as one field: a hundred thousand of them kept a
    process busy for seconds, before it checked whether the form was one of ours."""
    for name in (b"", b'; name="a"'):
        part = b"--x\r\nContent-Disposition: form-data" + name + b"\r\n\r\n\r\n"
        headers = {"Origin": owner.base_url, "Accept": "text/html", "Content-Type": "multipart/form-data; boundary=x"}
        async with owner.session.post(
            owner.base_url + "/contacts/import", data=part * 60 + b"--x--\r\n", headers=headers
        ) as answer:
            assert (answer.status, "could not be read" in await answer.text()) == (400, True)


async def test_whoever_takes_over_counts_nobody_twice(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies between two steps, and one that comes back and believes that it still owns the file."""
    rows = [f"+25884{1_000_000 + n % 900},Person {n}" for n in range(1_000)] + ["bad,Nobody"]
    page = await to_check(pool, owner, "\n".join(["phone,name", *rows]).encode())
    assert all(said in page.words for said in ("Rows 1,001", "New 900", "Twice in the file 100", "Rejected rows 1"))
    id = page.path.split("/")[3]
    await owner.submit(page, f"/contacts/imports/{id}/run")
    monkeypatch.setattr(running, "STEPS", 2)
    workers = [Runner(pool, {}, rows=90, lease=timedelta(0)) for _ in range(3)]
    turns = random.Random(7)
    while await pool.fetchval("SELECT state FROM contact_imports") == "running":
        await turns.choice(workers).round()
    for one in workers:
        await one.close()
    row = await pool.fetchrow("SELECT rows, created, updated, unchanged, rejected FROM contact_imports")
    assert tuple(row) == (1_001, 900, 100, 0, 1)
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 900
    assert await pool.fetchval(APART) == 0


async def test_what_was_stopped_goes_on_where_it_was(
    pool: Pool, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "STEPS", 1)
    content = "\n".join(["phone", *(f"+25884{1_000_000 + n}" for n in range(50))]).encode()
    page = await to_check(pool, owner, content)
    id = page.path.split("/")[3]
    page = await owner.submit(page, f"/contacts/imports/{id}/run")
    runner = Runner(pool, {}, rows=20)
    await runner.round()
    page = await owner.submit(page, f"/contacts/imports/{id}/stop")
    assert ("Stopped" in page.words, "Rows 20" in page.words) == (True, True)
    assert await runner.round() == 0
    await owner.submit(page, f"/contacts/imports/{id}/run")
    await runner.round()
    assert "left" not in (await owner.get(f"/contacts/imports/{id}")).words, "a moment says nothing of its pace"
    # Since it was resumed: the time in which it was stopped does not count.
    await pool.execute("UPDATE contact_imports SET resumed_at = now() - interval '10 seconds'")
    page = await owner.get(f"/contacts/imports/{id}")
    assert re.search(r"% · [12] rows a second · less than a minute left", page.words), page.words
    assert aloud(page) == ["Running"]
    await pool.execute("UPDATE contact_imports SET resumed_at = now() - interval '10 minutes'")
    page = await owner.get(f"/contacts/imports/{id}")
    assert "about 5 min left" in page.words, page.words
    while await runner.round():
        pass
    await runner.close()
    assert tuple(await pool.fetchrow("SELECT state, rows, created FROM contact_imports")) == ("finished", 50, 50)


async def test_what_is_kept_of_a_rejected_row_does_not_grow_with_it(pool: Pool, owner: Browser) -> None:
    """Hundreds of them are on one page."""
    long, wide, usual = f"a,{'x' * 50_000},Ana", "ab," * 100_000, f"b,{'y' * 1_001},Eva"
    content = "\n".join(["phone,notes,name", "+258841234567,,Rui", long, wide, usual]).encode()
    page = await to_check(pool, owner, content)
    await owner.submit(page, page.path.replace("/check", "/run"))
    await work(pool)
    kept = [msgspec.json.decode(cells) for (cells,) in await pool.fetch("SELECT cells FROM contact_import_rejects")]
    assert sorted(map(len, kept)) == [3, 3, 1_638]
    assert ["a", "x" * 1_000, "Ana"] in kept
    assert ["b", "y" * 1_001, "Eva"] in kept


async def test_what_was_confirmed_is_not_asked_again_when_it_goes_on(pool: Pool, owner: Browser) -> None:
    numbers = [f"+2588012345{n:02}" for n in range(40)] + [f"+35191{1_000_000 + n}" for n in range(20)]
    page = await to_check(pool, owner, "\n".join(["phone", *numbers]).encode())
    page = await owner.submit(page, f"{page.path.removesuffix('/check')}/run", strangers="yes", unused="yes")
    page = await owner.submit(page, f"{page.path}/stop")
    page = await owner.submit(page, f"{page.path}/run")
    await work(pool)
    assert tuple(await pool.fetchrow("SELECT state, created FROM contact_imports")) == ("finished", 60), page.words


async def test_what_was_stopped_counts_as_long_as_its_file_is_kept(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "MOST_OPEN", 1)
    page = await to_check(pool, owner, b"phone\n+258841234567\n")
    id = page.path.split("/")[3]
    page = await owner.submit(page, f"/contacts/imports/{id}/run")
    page = await owner.submit(page, f"/contacts/imports/{id}/stop")
    assert "continue those that are stopped" in (await send(owner, b"phone\n+258841234568\n")).words
    await pool.execute(DELETE_CHUNKS, uuid7_floor(datetime.now(UTC) + timedelta(days=1)), 100)
    page = await send(owner, b"phone\n+258841234568\n")
    assert page.path.endswith("/read"), page.words


async def test_what_was_stopped_does_not_go_on_without_its_file(
    pool: Pool, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would end at once, as if all of its rows were imported."""
    monkeypatch.setattr(running, "STEPS", 1)
    content = "\n".join(["phone", *(f"+25884{1_000_000 + n}" for n in range(50))]).encode()
    page = await to_check(pool, owner, content)
    id = page.path.split("/")[3]
    page = await owner.submit(page, f"/contacts/imports/{id}/run")
    runner = Runner(pool, {}, rows=20)
    await runner.round()
    await pool.execute(DELETE_CHUNKS, uuid7_floor(datetime.now(UTC) + timedelta(days=1)), 100)
    assert await pool.fetchval("SELECT count(*) FROM contact_import_chunks") == 1, "it may be taken over"
    page = await owner.submit(page, f"/contacts/imports/{id}/stop")
    await pool.execute(DELETE_CHUNKS, uuid7_floor(datetime.now(UTC) + timedelta(days=1)), 100)
    await runner.close()
    await pool.execute("UPDATE contact_imports SET lease_until = NULL")
    after = await owner.submit(page, f"/contacts/imports/{id}/run")
    await work(pool)
    assert "Upload it again" in after.words
    assert f"/contacts/imports/{id}/run" not in after.text
    assert tuple(await pool.fetchrow("SELECT state, rows FROM contact_imports")) == ("stopped", 20)


async def test_what_is_resumed_while_its_file_is_erased_is_stopped(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention, which had read a moment earlier, deletes some of it: the import must not end as if it were
    complete."""
    monkeypatch.setattr(drafts, "CHUNK", 256)
    content = "\n".join(["phone", *(f"+25884{1_000_000 + n}" for n in range(50))]).encode()
    page = await to_check(pool, owner, content)
    id = page.path.split("/")[3]
    await owner.submit(page, f"/contacts/imports/{id}/run")
    await pool.execute("DELETE FROM contact_import_chunks WHERE number = 1")
    await work(pool)
    assert tuple(await pool.fetchrow("SELECT state, rows FROM contact_imports")) == ("stopped", 0)
    page = await owner.get(f"/contacts/imports/{id}")
    assert "Upload it again" in page.words, "although some of it is left"
    async with pool.acquire() as conn:
        with pytest.raises(ImportMoved):
            await drafts.run(conn, tenant.actor, id=UUID(id), confirmed=["strangers"])


async def test_a_suppression_list_and_back(pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser) -> None:
    async with pool.acquire() as conn:
        await records.create_many(conn, tenant.actor, entries=[Entry("+258841234567", "Ana")])
    await pool.execute(
        "INSERT INTO opt_outs (organization_id, recipient, since, source) VALUES ($1, $2, now(), 'keyword')",
        tenant.id,
        "+258841234568",
    )
    page = await send(owner, b"number\n+258841234567\n+258841234568\n+258841234569\n", kind="opt_outs")
    page = await owner.submit(page, page.path)
    page = await owner.submit(page, page.path)
    await work(pool)
    page = await owner.get(page.path)
    assert ("New 2" in page.words, "Opt 2 numbers out" in page.words) == (True, True)
    id = page.path.split("/")[3]
    await owner.submit(page, f"/contacts/imports/{id}/run")
    await work(pool)
    assert await pool.fetchval("SELECT count(*) FROM opt_outs WHERE source = 'organization'") == 2
    # Where a person's history leads, also in the other mode, for whoever may see the import.
    ana, link = f"/contacts/{await pool.fetchval('SELECT id FROM contacts')}", f'href="/go/{id}'
    assert link in (await owner.get(ana)).text
    assert (await owner.get(f"/go/{id}?mode=test")).path == f"/contacts/imports/{id}"
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    shown = await other_browser.get(ana)
    assert ("Opted out by an import: people.csv" in shown.words, link in shown.text) == (True, False)
    assert await pool.fetchval("SELECT count(*) FROM events WHERE kind = 'contact.opted_out'") == 2
    assert (
        "24 hours: opt-outs that only this import added are lifted."
        in (await owner.get(f"/contacts/imports/{id}")).words
    )
    page = await owner.get(f"/contacts/imports/{id}/undo")
    assert "2 opt-outs that it added are lifted." in page.words
    await owner.submit(page, f"/contacts/imports/{id}/undo")
    await work(pool)
    assert "Opt-outs that only it had added are lifted." in (await owner.get(f"/contacts/imports/{id}")).words
    assert [row["source"] for row in await pool.fetch("SELECT source FROM opt_outs")] == ["keyword"]


async def test_a_list_of_opt_outs_is_for_those_who_may_change_live_ones(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """In test mode, developers may import contacts, and opt-outs are the same in both modes."""
    await make_person(pool, tenant, "eva@example.com", role="developer")
    await other_browser.sign_in("eva@example.com")
    token = (await other_browser.get("/contacts/import?mode=test")).form("/contacts/import?mode=test")["_token"]
    page = await send(owner, b"number\n+258841234567\n", kind="opt_outs")
    page = await owner.submit(page, page.path)
    await owner.submit(page, page.path)
    await work(pool)
    await pool.execute("UPDATE contact_imports SET mode = 'test'")
    id = page.path.split("/")[3]
    where, hers = f"/contacts/imports/{id}", {"_token": token}
    form = (await owner.get(f"{where}/check?mode=test")).form(f"{where}/run?mode=test")
    assert (await other_browser.post(f"{where}/run?mode=test", hers)).status == 403
    assert (await owner.post(f"{where}/run?mode=test", form)).status == 200
    assert (await other_browser.post(f"{where}/stop?mode=test", hers)).status == 403
    await work(pool)
    assert (await other_browser.post(f"{where}/undo?mode=test", hers)).status == 403
    await work(pool)
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 1


async def test_its_people_are_the_audience_of_a_campaign(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await to_check(pool, owner, b"phone,name\n+258841234567,Ana\n+258841234568,Bia\n")
    id = page.path.split("/")[3]
    await owner.submit(page, f"/contacts/imports/{id}/run")
    await work(pool)
    page = await owner.get(f"/contacts/imports/{id}")
    assert f'href="/campaigns/new?import={id}"' in page.text
    form = (await owner.get(f"/campaigns/new?import={id}")).form("/campaigns")
    assert form["import"] == id
    typed = form | {"name": "Sale", "to": "import", "text": "Hi {{name}}", "when": "now"}
    seen = await owner.post("/campaigns", typed | {"do": "preview"})
    for said in ("Found 2", "Get it 2", "Hi Ana"):
        assert said in seen.words, (said, seen.words)
    wrong = await owner.post("/campaigns", typed | {"do": "preview", "import": ""})
    assert (wrong.status, "Choose one of the imports." in wrong.words) == (422, True)
    made = await owner.post("/campaigns", typed | {"do": "create"})
    assert ("The campaign is created." in made.words, f"/contacts/imports/{id}" in made.text) == (True, True)
    assert f'value="{id}" selected' in (await owner.get(f"/campaigns/new?copy={made.path.split('/')[2]}")).text
    stager = Stager(pool)
    while await stager.round():
        pass
    rows = await pool.fetch("SELECT recipient, body FROM messages ORDER BY recipient")
    assert [tuple(row) for row in rows] == [("+258841234567", "Hi Ana"), ("+258841234568", "Hi Bia")]


async def test_each_step_is_left_and_gone_on_with(pool: Pool, owner: Browser) -> None:
    page = await send(owner, b"phone\n+258841234567\n")
    id = page.path.split("/")[3]
    assert (await owner.get(f"/contacts/imports/{id}")).path.endswith("/read")
    assert "Waiting for you" in (await owner.get("/contacts/imports")).words
    page = await owner.submit(await owner.get(f"/contacts/imports/{id}/map"), f"/contacts/imports/{id}/map")
    assert (await owner.get(f"/contacts/imports/{id}")).path.endswith("/check")
    page = await owner.submit(page, f"/contacts/imports/{id}/back")
    assert page.path.endswith("/map")
    wrong = await owner.submit(page, page.path, **{"column-0": ""})
    assert (wrong.status, "Choose the column" in wrong.words) == (422, True)
    late = (await owner.get("/contacts/new")).form("/contacts")
    moved = await owner.post(f"/contacts/imports/{id}/run", late)
    assert "has changed in the meantime" in moved.words
    token = {"_token": late["_token"]}
    page = await owner.post(f"/contacts/imports/{id}/discard", token)
    assert ("The file is erased." in page.words, "No import yet" in page.words) == (True, True)


async def test_another_organizations_files_are_nobodys(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    page = await send(owner, b"phone\n+258841234567\n")
    id = page.path.split("/")[3]
    other = await make_tenant(pool)
    await make_person(pool, other, "eva@example.com")
    await other_browser.sign_in("eva@example.com")
    token = (await other_browser.get("/contacts/new")).form("/contacts")
    for step in ("", "/read", "/map", "/check", "/mend"):
        assert (await other_browser.get(f"/contacts/imports/{id}{step}")).status == 404, step
    for step in ("read", "map", "back", "run", "stop", "undo", "discard", "rejects", "mend"):
        assert (await other_browser.post(f"/contacts/imports/{id}/{step}", token)).status == 404, step
    assert (await owner.get(f"/contacts/imports/{id}/read?mode=test")).status == 404


def test_every_reason_has_words() -> None:
    assert set(importing.REASONS) == words.IMPORT_REASONS.keys()


async def test_a_files_numbers_are_judged_outside_the_event_loop(
    pool: Pool, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with a zero after their calling code take 40 µs each, and other requests would wait for two thousand of
    them."""
    threads, add = set[int](), Numbers.add
    monkeypatch.setattr(Numbers, "add", lambda numbers, one: threads.add(threading.get_ident()) or add(numbers, one))
    await to_check(pool, owner, b"phone\n+390612345678\n+390612345679\n")
    assert threads
    assert threading.get_ident() not in threads


class CountedArray(array):  # type: ignore[type-arg]
    """An array that counts how often one of its items is read."""

    looked = 0

    def __getitem__(self, place: Any) -> Any:
        CountedArray.looked += 1
        return super().__getitem__(place)


def test_no_file_can_put_all_of_its_numbers_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "array", CountedArray)
    # They share what numbers used to be placed by: the middle digits of their product with a known factor.
    factor, whole = 0x9E3779B97F4A7C15, 1 << 40
    alike = [n * pow(factor, -1, whole) % whole + 49 * whole for n in range(2_000)]
    for given in (alike, range(258_841_000_000, 258_841_002_000)):
        for _ in range(10):
            numbers, CountedArray.looked = Numbers(), 0
            assert all(numbers.add(f"+{one}") for one in given)
            assert CountedArray.looked < 10 * len(given)


def test_a_set_of_numbers_is_a_set() -> None:
    numbers, known, made = Numbers(), set[str](), random.Random(3)
    for _ in range(20_000):
        one = f"+{made.randrange(1_000_000, 1_015_000)}"
        assert numbers.add(one) == (one not in known)
        known.add(one)


async def test_a_row_that_is_corrected_while_its_import_is_stopped_does_not_take_the_place_of_the_next(
    pool: Pool, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "STEPS", 1)
    page = await to_check(pool, owner, b"phone\nwrong\n+258841000001\n+258841000002\n")
    here = page.path.removesuffix("/check")
    await owner.submit(page, f"{here}/run")
    # As of a first row of a hundred thousand characters.
    runner = Runner(pool, {}, rows=1)
    await runner.round()
    await runner.close()
    await pool.execute("UPDATE contact_imports SET lease_until = NULL")
    page = await owner.submit(await owner.get(here), f"{here}/stop")
    page = await owner.submit(await owner.get(f"{here}/mend"), f"{here}/mend", **{"cell-2-phone": "+258841000003"})
    assert "1 row imported." in page.words
    await owner.submit(await owner.get(here), f"{here}/run")
    await work(pool)
    assert await pool.fetchval("SELECT state FROM contact_imports") == "finished"
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 3
    await owner.submit(await owner.get(f"{here}/undo"), f"{here}/undo")
    await work(pool)
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 0


async def test_a_file_of_a_session_that_has_ended_leads_to_signing_in(owner: Browser) -> None:
    action = "/contacts/import"
    data = aiohttp.FormData(quote_fields=False)
    for field, value in (await owner.get(action)).form(action).items():
        data.add_field(field, value)
    data.add_field("file", b"phone\n+258841234567\n", filename="people.csv", content_type="text/csv")
    owner.session.cookie_jar.clear()
    headers = {"Origin": owner.base_url, "Accept": "text/html"}
    async with owner.session.post(owner.base_url + action, data=data, headers=headers) as answer:
        page = Page(answer, await answer.text())
    assert (page.status, "You were signed out. Sign in, then try again." in page.words) == (403, True)
    assert "a file has to be chosen again" in page.words
    assert 'href="/login?next=%2Fcontacts%2Fimport"' in page.text


async def test_the_words_of_a_cell_with_a_line_break_stay_apart_when_its_row_is_fixed(
    pool: Pool, owner: Browser
) -> None:
    page = await to_check(pool, owner, b'phone,name\nwrong,"Ana\r\nSilva"\n+258841000002,Rui\n')
    here = page.path.removesuffix("/check")
    await owner.submit(page, f"{here}/run")
    await work(pool)
    page = await owner.get(f"{here}/mend")
    # A field has one line: browsers take the break out.
    assert page.form(f"{here}/mend")["cell-2-name"] == "Ana Silva"
    await owner.submit(page, f"{here}/mend", **{"cell-2-phone": "+258841000001"})
    assert await pool.fetchval("SELECT name FROM contacts WHERE phone = '+258841000001'") == "Ana Silva"
