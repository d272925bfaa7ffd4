"""Suppliers' reports compared with what they were handed, receipts that match nothing, and unknown states."""

from __future__ import annotations

import csv
import html
import io
import re
from datetime import timedelta
from functools import partial
from uuid import UUID

import msgspec

from heliograph.accounts import installation
from heliograph.base.crypto import derive_key
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.mail import outbox
from heliograph.pages.languages import locale
from heliograph.pages.noticing import report
from heliograph.sms.dispatch import suppliers
from heliograph.sms.reports import daily, receipts, words
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.suppliers.contract import Receipt, ReceiptState
from heliograph.traffic import reconciliation
from tests.rules.factories import SENDER, TO, organization, sent, status_of

from .conftest import Browser, make_operator, signed_in

KEY = derive_key("a secret key of a test installation", "suppliers")


async def added(pool: Pool, name: str = "main") -> UUID:
    async with pool.acquire() as conn:
        values = {"host": "127.0.0.1", "port": 2775, "system_id": "a"}
        return await suppliers.add(conn, KEY, name=name, kind="smpp", settings=values, secret="s")


async def receive(pool: Pool, id: UUID, *keys: str) -> None:
    one = Receipt(keys, ReceiptState.UNDELIVERED, TO[1:], SENDER, " ".join(keys).encode())
    async with pool.acquire() as conn, conn.transaction():
        await receipts.store(conn, [ReceivedReceipt(id, one)], policies={})
    await pool.execute(
        "UPDATE receipts SET received_at = received_at - interval '10 seconds',"
        " received_on = ((received_at - interval '10 seconds') AT TIME ZONE 'UTC')::date"
    )


async def test_the_report_of_a_week_and_its_file(pool: Pool, root: Browser) -> None:
    id, other = await added(pool), await added(pool, "other")
    assert "Nothing was handed to a supplier" in (await root.get("/console/receipts")).words
    at = clock.now()
    async with pool.acquire() as conn:
        for day, delivered in ((at, 80), (at - timedelta(days=7), 90)):
            events = [(id, "MZ", "accepted", 100), (id, "MZ", "delivered", delivered), (id, "MZ", "undelivered", 10)]
            await reconciliation.count(conn, events, day)
        await reconciliation.count(conn, [(other, "PT", "accepted", 7), (other, "PT", "orphaned", 3)], at)
    today = f"from={at:%Y-%m-%d}&to={at:%Y-%m-%d}"
    page = await root.get(f"/console/receipts?{today}")
    assert page.status == 200
    # 80 of 90 that ended, and 90 of 100 a week before.
    day = locale("en").whole_day(at.date())
    for said in ("Delivered 80 88.9 % 90.0 % -1.1", f"main {day} 100 100 90", f"other {day} 7 7 0"):
        assert said in page.words, page.words
    page = await root.get(f"/console/receipts?{today}&supplier=other&by=country")
    assert "other Portugal 7 7 0 0 3 0 7" in page.words
    assert "main MZ" not in page.words
    file = await root.get(f"/console/receipts?{today}&csv=1")
    assert "attachment" in file.headers["content-disposition"]
    rows = {row["supplier"]: row for row in csv.DictReader(io.StringIO(file.text.removeprefix("\ufeff")))}
    assert (rows["main"]["delivered"], rows["main"]["week_before_delivered_share"]) == ("80", "0.9")
    for query, said in (
        ("from=yesterday", "Enter a day"),
        ("from=2027-01-02&to=2027-01-01", "must not be before"),
        ("from=2026-01-01&to=2026-04-03", "at most 92 days"),  # 93
        ("from=2026-01-01&to=2027-02-05&by=month", "or 400"),  # 401
        ("supplier=nobody", "no such supplier"),
        ("country=Mozambique", "Enter a country"),
    ):
        wrong = await root.get(f"/console/receipts?{query}")
        assert wrong.status == 422, query
        assert said in wrong.words


# So many countries on each of 92 days that there are over ten thousand lines.
MANY = """
INSERT INTO reconciliation_days (day, supplier_id, country, what, currency, count, segments, charged, to_receipt)
SELECT $2::date - n, $1, 'X' || m, 'accepted', 'EUR', 1, 1, 50000, '{}'
  FROM generate_series(0, 91) AS n, generate_series(1, 120) AS m
"""


async def test_the_longest_report_has_its_latest_days_and_its_file_all_of_them(pool: Pool, root: Browser) -> None:
    """A bill is checked with the file."""
    today = clock.now().date()
    await pool.execute(MANY, await added(pool), today)
    days = f"from={today - timedelta(days=91)}&to={today}&by=day%2Ccountry"
    page = await root.get(f"/console/receipts?{days}")
    assert f"main {locale('en').whole_day(today)} X1 1" in page.words
    file = await root.get(f"/console/receipts?{days}&csv=1")
    rows = list(csv.DictReader(io.StringIO(file.text.removeprefix("\ufeff"))))
    assert len({(row["at"], row["country"]) for row in rows}) == len(rows) == 92 * 120
    assert {row["charged"] for row in rows} == {"0.050000 EUR"}
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    for by, lines in (("day", 92), ("country", 120), ("month%2Ccountry", 120 * len({row["at"][:7] for row in rows}))):
        file = await root.get(f"/console/receipts?{days}&csv=1".replace("day%2Ccountry", by))
        rows_by = list(csv.DictReader(io.StringIO(file.text.removeprefix("\ufeff"))))
        assert len(rows_by) == lines
        assert sum(int(row["accepted"]) for row in rows_by) == 92 * 120


async def test_a_simulator_has_its_badge_wherever_receipts_name_it(pool: Pool, root: Browser) -> None:
    main, toy = await added(pool), await added(pool, "toy")
    await pool.execute("UPDATE suppliers SET simulated = true WHERE id = $1", toy)
    async with pool.acquire() as conn:
        for id in (main, toy):
            await reconciliation.count(conn, [(id, "MZ", "accepted", 4), (id, "MZ", "undelivered", 3)], clock.now())
    for id in (main, toy):
        await receive(pool, id, f"lost-{id}")
    counter = words.Words()
    for id in (main, toy):
        counter.add(id, Receipt(("1",), ReceiptState.UNKNOWN, "", "", b"", unknown_word="XYZZY"))
        counter.add(id, Receipt(("1",), ReceiptState.FAILED, "", "", b"", error="011"))
    async with pool.acquire() as conn:
        await counter.store(conn)
    # How messages ended, what is due back, and line by line.
    for path, times in (("", 3), ("/unmatched", 1), ("/words", 2)):
        page = await root.get(f"/console/receipts{path}")
        assert page.text.count('class="tag simulated nowrap"') == times, path
        assert "toy simulator" in page.words, path
        assert "main simulator" not in page.words, path


async def test_a_long_report_is_leafed_through(pool: Pool, root: Browser) -> None:
    """The newest days first; the supplier with the most messages shows how they ended, and the file contains
    everything."""
    names = [f"carrier-{number:02}" for number in range(22)]
    now = clock.now()
    async with pool.acquire() as conn:
        for rank, name in enumerate(names, 1):
            id = await added(pool, name)
            for day in range(3):
                events = [(id, "MZ", "accepted", rank), (id, "MZ", "delivered", rank)]
                await reconciliation.count(conn, events, now - timedelta(days=day))
    seen = []
    page = await root.get("/console/receipts")
    days = [locale("en").whole_day(now.date() - timedelta(days=day)) for day in range(3)]
    assert "Of the suppliers with most messages" in page.words
    assert "carrier-02 Delivered" in page.words
    assert "carrier-01 Delivered" not in page.words
    for _ in range(2):
        seen += re.findall(rf"(carrier-\d\d) ({'|'.join(days)})", page.words)
        links = re.findall(r'rel="next" href="([^"]*)"', page.text)
        if links:
            page = await root.get(html.unescape(links[0]))
    assert not links
    assert seen == [(name, day) for day in days for name in names]
    assert "Newer" in page.words
    file = await root.get("/console/receipts?csv=1")
    assert len(list(csv.DictReader(io.StringIO(file.text.removeprefix("\ufeff"))))) == len(seen)


async def test_what_a_supplier_charges_and_what_of_it_is_due_back(pool: Pool, root: Browser) -> None:
    id, at = await added(pool), clock.now()
    sums: reconciliation.Sums = {}
    for what, currency, number, charged in (
        ("accepted", "USD", 9, 900_000),
        ("undelivered", "USD", 2, 200_000),
        ("accepted", "EUR", 1, 30_000),
        ("never", "EUR", 1, 30_000),
        ("accepted", "", 1, 0),
        ("expired", "", 1, 0),
    ):
        key = reconciliation.Counted(id, reconciliation.hour_of(at), "MZ", what, "643-04", currency)
        reconciliation.add(sums, key, number, number, charged)
    async with pool.acquire() as conn:
        await reconciliation.append(conn, sums)
    here = f"/console/receipts?from={at:%Y-%m-%d}&to={at:%Y-%m-%d}"
    page = await root.get(here)
    assert "main €0.03 US$0.90 €0.03 US$0.20 4 1" in page.words, page.words
    page = await root.get(f"{here}&by=month,country")
    assert f"main {locale('en').month(at.date())} Mozambique 11 11 3" in page.words
    (row,) = csv.DictReader(io.StringIO((await root.get(f"{here}&by=month&csv=1")).text.removeprefix("\ufeff")))
    assert (row["charged"], row["due_back"]) == ("0.030000 EUR; 0.900000 USD", "0.030000 EUR; 0.200000 USD")
    assert (row["owed"], row["owed_unpriced"]) == ("4", "1")
    wrong = await root.get("/console/receipts?from=yesterday&to=tomorrow&supplier=nothing&country=Mozambique")
    for field in ("from", "to", "supplier", "country"):
        assert f'href="#{field}"' in wrong.text, (field, wrong.words)


async def test_a_receipt_that_matches_nothing_is_cured_tried_again_and_matched(pool: Pool, root: Browser) -> None:
    id, actor = await added(pool), await organization(pool)
    message, late, lost = [await sent(pool, actor, id, key) for key in ("33e95179", "later", "lost")]
    await pool.execute("UPDATE attempts SET supplier_message_id = NULL WHERE message_id = $1", late)
    for key in ("870928761", "later", "rewritten"):
        await receive(pool, id, key)
    fingerprints = {row[0]: row[1] for row in await pool.fetch("SELECT keys[1], fingerprint FROM receipts")}
    here = "/console/receipts/unmatched"
    page = await root.get(here)
    for said in ("870928761", "another number base", "resp_id_base=hex", f"…{TO[-4:]}", "Undelivered"):
        assert said in page.words, said
    assert TO[1:] not in page.text
    # Its advice, by a button.
    page = await root.submit(page, f"{here}/cure")
    assert "is set" in page.words
    page = await root.submit(page, f"{here}/{fingerprints['870928761']}/retry")
    assert "1 receipt found its message." in page.words
    assert await status_of(pool, message) == "undelivered"
    page = await root.submit(page, f"{here}/{fingerprints['later']}/retry")
    assert "Nothing matches yet." in page.words
    await pool.execute("UPDATE attempts SET supplier_message_id = 'later' WHERE message_id = $1", late)
    page = await root.submit(await root.get(f"{here}?supplier=main"), f"{here}/retry")
    assert "1 receipt found its message." in page.words
    assert await status_of(pool, late) == "undelivered"
    # By hand, with a reason.
    (link,) = [one for one in page.text.split('"') if one.endswith(f"&amp;supplier={id}")]
    form = await root.get(link.replace("&amp;", "&"))
    match = f"{here}/{fingerprints['rewritten']}/match"
    for typed, said in (
        ({"message_id": "nothing", "reason": "x"}, "An id looks like"),
        ({"message_id": str(id), "reason": "x"}, "was handed no such message"),
        ({"message_id": str(lost), "reason": " "}, "Give a reason"),
    ):
        wrong = await root.submit(form, match, **typed)
        assert wrong.status == 422, typed
        assert said in wrong.words
    page = await root.submit(form, match, message_id=str(lost), reason="the bill says so")
    assert page.path == f"/console/messages/{lost}"
    assert await status_of(pool, lost) == "undelivered"
    again = await root.submit(form, match, message_id=str(lost), reason="the bill says so")
    assert "has a message already" in again.words
    assert "Every receipt was matched" in (await root.get(here)).words
    assert (await root.get(f"{match}?on=2027-01-01&supplier=nobody")).status == 404


async def test_pages_of_those_that_match_nothing(pool: Pool, root: Browser) -> None:
    id = await added(pool)
    for number in range(30):
        await receive(pool, id, f"key-{number:02d}")
    first = await root.get("/console/receipts/unmatched?limit=25")
    assert "key-29" in first.words
    assert "key-04" not in first.words
    (older,) = [part.partition('"')[0] for part in first.text.split('rel="next" href="')[1:]]
    second = await root.get(older.replace("&amp;", "&"))
    assert "key-04" in second.words
    assert "key-05" not in second.words
    assert (await root.get("/console/receipts/unmatched?only=orphans")).words.count("key-") == 0
    assert (await root.get(f"/console/receipts/unmatched?after={'f' * 32}")).status == 200


async def test_words_are_given_their_meaning(pool: Pool, root: Browser, other_browser: Browser) -> None:
    id = await added(pool)
    here = "/console/receipts/words"
    assert "Every state is understood" in (await root.get(here)).words
    counter = words.Words()
    counter.add(id, Receipt(("1",), ReceiptState.UNKNOWN, "", "", b"", unknown_word="XYZZY"))
    counter.add(id, Receipt(("1",), ReceiptState.FAILED, "", "", b"", error="011"))
    async with pool.acquire() as conn:
        await counter.store(conn)
    page = await root.get(here)
    assert "XYZZY main 1" in page.words
    assert (await root.submit(page, f"{here}/state", meaning="lost")).status == 422
    page = await root.submit(page, f"{here}/state", meaning="undelivered")
    assert "applies from the next receipt on" in page.words
    assert "Every state is understood" in page.words
    page = await root.submit(page, f"{here}/error", meaning="absent subscriber")
    assert page.form(f"{here}/error")["meaning"] == "absent subscriber"
    # Someone who may only view sees what it means, and changes nothing.
    await signed_in(pool, other_browser, "auditor", "rui@example.com")
    page = await other_browser.get(here)
    assert "absent subscriber" in page.words
    assert f'action="{here}' not in page.text


async def test_the_receipts_of_a_day_are_mailed_once(pool: Pool, root: Browser, settings: Settings) -> None:
    box = outbox.of(
        msgspec.structs.replace(
            settings, smtp_url="smtp://localhost", mail_from="a@acme.test", public_url="https://acme.test"
        )
    )
    writes = partial(report.compose, console="https://acme.test/console")
    late = clock.now().replace(hour=daily.HOUR)
    early = late.replace(hour=daily.HOUR - 1)
    id = await added(pool)
    for email, role in (("rui@example.com", "auditor"), ("fay@example.com", "finance")):
        await make_operator(pool, email, role)
    await pool.execute("UPDATE users SET language = 'pt' WHERE email = 'rui@example.com'")
    async with pool.acquire() as conn:
        assert await daily.tell(conn, box=box, writes=writes, at=late) == 0, "nobody asked for it"
        page = await root.get("/console/settings")
        await root.submit(page, "/console/settings", receipts_mail="true")
        assert (await installation.load(conn)).receipts_mail
        assert await daily.tell(conn, box=box, writes=writes, at=late) == 0, "nothing was handed over"
        for at, delivered in ((late - timedelta(days=1), 80), (late - timedelta(days=8), 90)):
            events = [(id, "MZ", "accepted", 100), (id, "MZ", "delivered", delivered), (id, "MZ", "undelivered", 10)]
            await reconciliation.count(conn, events, at)
        assert await daily.tell(conn, box=box, writes=writes, at=early) == 0
        assert await daily.tell(conn, box=None, writes=writes, at=late) == 0
        # For those who may see suppliers: not for those who may only see money.
        assert await daily.tell(conn, box=box, writes=writes, at=late) == 2
        assert await daily.tell(conn, box=box, writes=writes, at=late + timedelta(hours=1)) == 0, "once is enough"
        # What was mailed while the clock was ahead was about a day to come.
        await conn.execute("UPDATE mails SET created_at = created_at + interval '3 days'")
        assert await daily.tell(conn, box=box, writes=writes, at=late) == 2
        assert await daily.tell(conn, box=box, writes=writes, at=late) == 0
        await conn.execute("DELETE FROM mails WHERE created_at > now()")
        assert box is not None
        rows = await conn.fetch("SELECT id, kind, sealed, attempts FROM mails")
    letters = {one.to: one for one in (outbox.opened(box.key, outbox.ClaimedMail(*row)) for row in rows)}
    assert set(letters) == {"eva@example.com", "rui@example.com"}
    english, portuguese = letters["eva@example.com"].text, letters["rui@example.com"].text
    day = late - timedelta(days=1)
    assert "main\n  Submitted: 100\n" in english
    assert "Delivered: 88.9 % (Week before: 90.0 %)" in english
    assert f"https://acme.test/console/receipts?from={day:%Y-%m-%d}&to={day:%Y-%m-%d}" in english
    assert "88,9 %" in portuguese
    assert letters["rui@example.com"].subject.startswith("Heliograph: Recibos de ")
