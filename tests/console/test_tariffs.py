"""Rate cards and price lists in the console: imported after a preview of the changes, shown with dates, assigned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.pages.pieces import pasted
from heliograph.prices import rows, tariffs
from tests.api.conftest import Tenant
from tests.processes import until_true

from .conftest import PASSWORD, Browser, Page
from .test_roles import FORGET
from .test_suppliers import add

HERE = "/console/rates/import"
CARD = """country,mcc,mnc,price,currency,effective_from,effective_to
MZ,,,0.0450,USD,,
MZ,643,04,0.0380,USD,,2036-07-01
MZ,643,04,0.0410,USD,2036-07-01,
"""


async def sent(browser: Browser, text: str | bytes, **typed: str) -> Page:
    """The import's form with a pasted text."""
    token = (await browser.get(HERE)).form(HERE)
    form = aiohttp.FormData(default_to_multipart=True)
    for name in ("_token", "_once"):
        form.add_field(name, token[name])
    for name, value in ({"target": "list", "name": "standard", "do": "check"} | typed).items():
        form.add_field(name, value)
    form.add_field("text", text)
    headers = {"Origin": browser.base_url, "Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    async with browser.session.post(browser.base_url + HERE, data=form, headers=headers) as answer:
        return Page(answer, await answer.text())


async def sent_again(browser: Browser, asked: Page, **typed: str) -> Page:
    """The form on a page that asks for the password, which sends the file again."""
    assert 'enctype="multipart/form-data"' in asked.text
    form = aiohttp.FormData(default_to_multipart=True)
    for name, value in (asked.form(HERE) | typed).items():
        form.add_field(name, value)
    headers = {"Origin": browser.base_url, "Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
    async with browser.session.post(browser.base_url + HERE, data=form, headers=headers) as answer:
        return Page(answer, await answer.text())


async def listed(pool: Pool, kind: Any) -> list[tuple[str, int]]:
    async with pool.acquire() as conn:
        return [(one.name, one.rates) for one in await tariffs.list_tariffs(conn, kind)]


async def test_what_is_wrong_with_a_file_is_said_in_the_readers_language(pool: Pool, root: Browser) -> None:
    """Of each line: it was in English for everybody."""
    await pool.execute("UPDATE users SET language = 'pt'")
    page = await sent(
        root, CARD.replace("0.0450", "0,0450").replace(",,,0,0450", ',,,"0,0450"').replace("USD,2036", "X,2036")
    )
    assert page.status == 422
    assert "Linha 2: price '0,0450' tem uma vírgula: diga que os preços no ficheiro se escrevem 0,0380" in page.words
    assert "Linha 4: currency 'X' não é um código ISO 4217, como EUR" in page.words
    page = await sent(root, CARD.replace(",2036-07-01\n", ",\n", 1))
    assert "Linha 4: sobrepõe-se à linha 3: a anterior não tem fim, a posterior começa em 2036-07-01" in page.words


async def test_a_file_is_read_and_compared_beside_the_event_loop(
    root: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that other requests are served meanwhile."""
    on_loop = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def one(*given: Any, **options: Any) -> Any:
            with suppress(RuntimeError):
                on_loop.append(asyncio.get_running_loop())
            return function(*given, **options)

        return one

    monkeypatch.setattr(rows, "read", noted(rows.read))
    monkeypatch.setattr(tariffs, "_compare", noted(tariffs._compare))
    assert "It would add 3, change 0, remove 0" in (await sent(root, CARD)).words
    assert not on_loop


async def test_a_field_beside_a_file_is_read_as_those_of_other_forms(root: Browser) -> None:
    page = await sent(root, CARD, name="stand\0ard")
    assert page.status == 400
    assert "NUL" in page.words


async def test_another_file_than_the_one_that_was_checked_is_not_imported(
    pool: Pool, root: Browser, settings: Settings
) -> None:
    """Nobody has seen what it would do: whoever goes on with the next supplier would replace the rates of both."""
    main, other = [str(await add(pool, settings, name)) for name in ("main", "other")]
    page = await sent(root, CARD, target=main, name="")
    fields = page.form(HERE)
    assert fields["do"] == "import"
    changed: tuple[dict[str, str], ...] = (
        {"target": other},
        {"whole": "yes"},
        {"text": CARD.replace("0.0450", "0.0550")},
    )
    for typed in changed:
        given = {"target": main, "name": "", "text": CARD} | typed
        text = given.pop("text")
        page = await sent(root, text, do="import", checked=fields["checked"], **given)
        assert (page.status, "It was changed after it was checked." in page.words) == (422, True), page.words
        assert "It would add 3" in page.words
        assert await listed(pool, "cost") == []
    again = page.form(HERE)
    page = await sent(root, again["text"], do="import", checked=again["checked"], target=main, name="")
    assert "Imported: 3 added" in page.words, page.words
    # Whatever ends its lines: a browser changes that.
    page = await sent(root, CARD.replace("\n", "\r\n"), do="import", checked=fields["checked"], target=main, name="")
    assert "Imported: 0 added, 1 changed" in page.words, page.words


async def test_differences_are_shown_before_a_card_is_imported(pool: Pool, root: Browser, settings: Settings) -> None:
    main = str(await add(pool, settings, "main"))
    empty = (await root.get("/console/rates")).text
    assert empty.count('href="/console/rates/import"') == 3, "above the lists, and in each of the two that are empty"
    page = await sent(root, CARD, target=main)
    assert "It would add 3, change 0, remove 0" in page.words, page.words
    assert "643-04" in page.words
    assert await listed(pool, "cost") == [], "nothing is imported yet"
    page = await sent(root, CARD, target=main, do="import")
    assert "Imported: 3 added" in page.words
    assert "US$0.045" in page.words
    assert "in effect now" in page.words
    assert "upcoming" in page.words
    assert await listed(pool, "cost") == [("main", 3)]
    again = await sent(root, CARD.replace("0.0450", "0.0650"), target=main)
    assert "change 1, remove 0 and leave 2" in again.words
    assert "1 price changes by more than 20 %" in again.words
    assert "+44.4 %" in again.words
    assert "The zeros of" not in again.words
    odd = await sent(root, CARD.replace("643,04", "643,98"), target=main)
    assert "The zeros of 643-98 cannot be checked" in odd.words, odd.words
    whole = await sent(root, "\n".join(CARD.split("\n")[:2]), target=main, whole="yes")
    assert "remove 2 and leave 1" in whole.words
    assert await listed(pool, "cost") == [("main", 3)]
    card = page.path
    assert "2 destinations have one price through all of these months." in page.words
    calendar = (await root.get(f"{card}?from=2036-06")).words.partition("Calendar")[2]
    assert "643-04 US$0.038 US$0.041 US$0.041" in calendar, calendar
    file = await root.get(f"{card}?csv=1")
    assert file.text.lstrip("\ufeff").startswith("country,mcc,mnc,prefix")
    made = await root.get(f"{card}/draft?markup=100")
    assert "0.090000,USD" in made.text
    for query, field in (
        ("markup=much", "markup"),
        ("markup=-101", "markup"),
        ("margin=100", "margin"),
        ("markup=1&margin=1", "margin"),
        ("markup=3000000000", "exchange"),
        ("currency=MZN", "exchange"),
        ("exchange=-1&currency=MZN", "exchange"),
        ("places=9", "places"),
    ):
        wrong = await root.get(f"{card}/draft?{query}")
        assert wrong.status == 422, query
        assert f'href="#{field}"' in wrong.text, (query, wrong.words)
    assert "A price would be more than a million." in (await root.get(f"{card}/draft?markup=3000000000")).words
    wrong = await root.get(f"{card}/draft?markup=much&margin=100&exchange=0&currency=money&places=9")
    for field in ("markup", "margin", "exchange", "currency", "places"):
        assert f'href="#{field}"' in wrong.text, (field, wrong.words)


async def test_what_was_free_is_marked_among_the_differences(root: Browser) -> None:
    """It is counted among the prices to check, and has no percentage that would be marked."""
    await sent(root, "country,price,currency\nMZ,0,USD\nPT,0.04,USD\n", do="import")
    page = await sent(root, "country,price,currency\nMZ,0.05,USD\nPT,0.05,USD\n")
    assert "2 prices change by more than 20 %" in page.words, page.words
    assert "US$0.05 a segment free before" in page.words, page.words


async def test_a_rate_that_ends_is_told_before_it_does(pool: Pool, root: Browser, settings: Settings) -> None:
    """A supplier without one may no longer be used, so nobody should have to learn of it from refused messages."""
    main = str(await add(pool, settings, "main"))
    ends = "country,price,currency,effective_to\nMZ,0.03,USD,2036-06-01\nZA,0.02,USD,\n"
    assert "Imported: 2 added" in (await sent(root, ends, target=main, do="import")).words
    line = (await root.get("/console/rates")).words.partition("Suppliers' rate cards")[2]
    assert "main USD 2 0 1 Jun 2036, 00:00 ? the rate for MZ ends, and none follows" in line, line
    follows = "country,price,currency,effective_from\nMZ,0.04,USD,2036-06-01\n"
    assert "Imported: 1 added" in (await sent(root, follows, target=main, do="import")).words
    line = (await root.get("/console/rates")).words.partition("Suppliers' rate cards")[2]
    assert "main USD 2 1 1 Jun 2036, 00:00 ● no gaps" in line, line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("MZ,,,,otp,0.04,,2026-01-01\nMZ,,,,,0.05,,", "no gaps"),
        ("MZ,,,,otp,0.04,,2036-06-01\nMZ,,,,,0.05,,", "no gaps"),
        ("MZ,,,,,0.05,,2026-01-01\nMZ,,,,otp,0.04,,", "? no rate applies to MZ"),
        ("MZ,643,04,,,0.04,,2026-01-01\n,643,04,,,0.05,2026-01-01,", "no gaps"),
        (",643,04,,,0.04,,2026-01-01\nMZ,,,,,0.05,,", "no gaps"),
        (",643,04,,,0.04,,2036-06-01\nMZ,,,,,0.05,,2036-01-01", "? the rate for 64304, MZ ends, and none follows"),
        (",,,25887,,0.04,,2026-01-01\n,,,2588,,0.05,2036-01-01,", "? no rate applies to 2588, 25887"),
        (",,,25887,,0.04,,2026-01-01\n,,,,,0.05,,", "no gaps"),
    ],
)
async def test_only_destinations_that_have_no_broader_rate_either_are_gaps(
    pool: Pool, root: Browser, settings: Settings, text: str, said: str
) -> None:
    await add(pool, settings, "main")
    file = "country,mcc,mnc,prefix,class,price,effective_from,effective_to,currency\n"
    file += "".join(f"{line},USD\n" for line in text.splitlines())
    async with pool.acquire() as conn:
        supplier_id = await conn.fetchval("SELECT id FROM suppliers")
        await tariffs.import_rates(
            conn, rows.read(file.splitlines(keepends=True)), kind="cost", name="main", supplier_id=supplier_id
        )
    line = (await root.get("/console/rates")).words.partition("Suppliers' rate cards")[2]
    assert said in line.partition("Price lists")[0], line


async def test_a_card_has_the_name_of_its_supplier_also_once_that_is_renamed(
    pool: Pool, root: Browser, settings: Settings
) -> None:
    """Another supplier may have the former name by then."""
    former = str(await add(pool, settings, "main"))
    assert "Imported: 3 added" in (await sent(root, CARD, target=former, do="import")).words
    await pool.execute("UPDATE suppliers SET name = 'old'")
    card = await sent(root, CARD, target=str(await add(pool, settings, "main")), do="import")
    assert await listed(pool, "cost") == [("main", 3), ("old", 3)]
    page = await root.get("/console/rates")
    names = page.words.partition("Suppliers' rate cards")[2].partition("Price lists")[0]
    assert (names.count("main USD"), names.count("old USD")) == (1, 1), names
    former_card = await pool.fetchval("SELECT id FROM tariffs WHERE supplier_id = $1", UUID(former))
    for path, name in ((card.path, "main"), (f"/console/rates/cards/{former_card}", "old")):
        assert f"<h1>{name}</h1>" in (await root.get(path)).text


async def test_a_price_list_whose_name_cannot_be_seen_is_refused_in_the_forms_words(pool: Pool, root: Browser) -> None:
    for name, said in (
        ("", "A price list's name must have 1 to 64 characters."),
        ("\u200b", "A price list's name must have 1 to 64 characters."),
        ("x" * 65, "A price list's name must have 1 to 64 characters."),
        ("stan\u202edard", "A name must not contain control characters."),
    ):
        page = await sent(root, CARD, name=name, do="import")
        assert (page.status, said in page.words) == (422, True), (name, page.words)
    assert await listed(pool, "price") == []
    assert "Imported: 3 added" in (await sent(root, CARD, name="Joa\u0303o " + "x" * 59, do="import")).words
    assert await listed(pool, "price") == [("João " + "x" * 59, 3)]


async def left_open(pool: Pool, browser: Browser) -> None:
    """The session has to confirm who it is of."""
    await pool.execute(FORGET)

    async def is_asked() -> bool:
        # A process caches a session for a second at most.
        return (await browser.get("/console/organizations/new")).status == 403

    await until_true(is_asked)


async def test_a_session_that_was_left_open_imports_nothing_and_the_file_is_kept(pool: Pool, root: Browser) -> None:
    await left_open(pool, root)
    # It arrives in several pieces, as a file of any size may: what decides about it has to come before it.
    page = await sent(root, CARD + "\n" * 1_000_000, do="import")
    assert (page.status, "Confirm that it is you" in page.words) == (403, True), page.words
    wrong = await sent_again(root, page, _password="not it, and long enough")
    assert wrong.status == 422, wrong.words
    assert await listed(pool, "price") == []
    done = await sent_again(root, wrong, _password=PASSWORD)
    assert "Imported: 3 added" in done.words, done.words
    assert await listed(pool, "price") == [("standard", 3)]


async def test_a_file_that_cannot_be_kept_is_refused_where_the_password_is_asked_for_and_the_rest_stays(
    pool: Pool, root: Browser
) -> None:
    await left_open(pool, root)
    for text, problem in (("\n" * 2_000_001, "at most 2 MB"), (" ", "Choose a file")):
        page = await sent(root, text, name="autumn", do="import", decimal_comma="yes")
        assert (page.status, "Confirm that it is you" in page.words, problem in page.words) == (422, True, True)
    done = await sent_again(root, page, _password=PASSWORD)
    assert (done.status, "Choose a file that is not empty" in done.words) == (422, True), done.words
    assert done.form(HERE)["name"] == "autumn"
    assert 'name="decimal_comma" value="yes" checked' in done.text
    assert await listed(pool, "price") == []


async def test_a_file_of_the_longest_size_can_be_imported_from_the_text_that_its_check_shows(
    pool: Pool, root: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Browsers send a text field's lines with CR and LF, whatever they ended with in the file."""
    monkeypatch.setattr(pasted, "LONGEST", len(CARD))
    assert "It would add 3" in (await sent(root, CARD)).words
    assert "Imported: 3 added" in (await sent(root, CARD.replace("\n", "\r\n"), do="import")).words
    assert "at most 2 MB" in (await sent(root, CARD.replace("\n", "\r\n") + "\r\n\n")).words
    assert await listed(pool, "price") == [("standard", 3)]


async def test_what_is_wrong_with_a_file_is_said_by_line(pool: Pool, root: Browser) -> None:
    page = await sent(root, CARD.replace("0.0380", "much"), do="import")
    assert page.status == 422
    assert "Line 3" in page.words
    assert "much" in page.text, "it can be mended where it stands"
    # A comma is declared by the field of this page.
    page = await sent(root, CARD.replace("0.0380", '"0,0380"'), do="import")
    assert "are written 0,0380 (“Prices in it are written 0,0380”)" in page.words
    assert "--" not in page.words
    for typed, text, field in (
        ({"target": "nobody"}, CARD, "target"),
        ({"name": ""}, CARD, "name"),
        ({}, " ", "file"),
    ):
        page = await sent(root, text, **typed)
        assert page.status == 422, typed
        assert f'href="#{field}"' in page.text, (typed, page.words)
    assert await listed(pool, "price") == []


async def test_a_price_list_is_assigned(pool: Pool, root: Browser, tenant: Tenant) -> None:
    page = await sent(root, CARD, do="import")
    path = f"{page.path}/assign"
    page = await root.submit(page, path, organization=str(tenant.id))
    assert "pays by standard from now on" in page.words
    lists = "SELECT t.name FROM organizations o LEFT JOIN tariffs t ON t.id = o.price_list_id WHERE o.id = $1"
    assert await pool.fetchval(lists, tenant.id) == "standard"
    page = await root.submit(page, path, organization=str(tenant.id), **{"for": "none"})
    assert "no longer has an assigned price list" in page.words
    assert await pool.fetchval(lists, tenant.id) is None
    wrong = await root.submit(page, path, organization="Acme", **{"for": "all"})
    assert (wrong.status, "Leave this empty if all organizations are meant." in wrong.words) == (422, True)
    assert wrong.form(path).items() >= {"organization": "Acme", "for": "all"}.items()
    assert not await pool.fetchval("SELECT is_default FROM tariffs"), "nobody else's price has changed"
    page = await root.submit(page, path, **{"for": "all"})
    assert "all organizations without an assigned one" in page.words
    assert await pool.fetchval("SELECT is_default FROM tariffs")
    page = await root.submit(page, path, organization="Nobody")
    assert page.status == 422
    assert 'href="#organization"' in page.text
    assert "standard" in (await root.get("/console/rates")).words
