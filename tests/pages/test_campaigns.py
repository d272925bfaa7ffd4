"""Campaigns on pages: previewed before they are created, followed, paused, resumed and canceled."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.campaigns import audience, drafts, plan, record
from heliograph.campaigns.channels import sms as sms_channel
from heliograph.campaigns.staging import Stager
from heliograph.campaigns.views import preview, progress, recipients
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.dashboard.audience.composing import offers
from heliograph.overview.exports import kinds
from heliograph.pages.forms import local_times
from heliograph.pages.languages import locale
from heliograph.privacy import erasure
from heliograph.retention import rules
from heliograph.whatsapp import library
from heliograph.why.words import why
from tests.rules import whatsapp_factories as making
from tests.rules.factories import quiet_now
from tests.rules.test_campaigns import count
from tests.rules.test_whatsapp_campaigns import OPEN

from .conftest import Api, Browser, Page, Tenant, make_person, make_tenant
from .exported import fetch

OWN = "+258840000001"
DUE = "SELECT count(*) FROM queue WHERE kind = 'sms' AND due_at < now() + interval '1 minute'"


async def people(pool: Pool, tenant: Tenant, count: int) -> None:
    entries = [
        Entry(f"+25884{1_000_000 + n}", f"P{n}", tags=("all", "odd") if n % 2 else ("all",)) for n in range(count)
    ]
    async with pool.acquire() as conn:
        await records.create_many(conn, tenant.actor, entries=entries)


async def look(browser: Browser, **typed: str) -> Page:
    form = (await browser.get("/campaigns/new")).form("/campaigns")
    typed = {"name": "Sale", "to": "tags", "tags": "all", "text": "Hello {{name}}", "when": "now"} | typed
    return await browser.post("/campaigns", form | {"do": "preview"} | typed)


async def make(browser: Browser, **typed: str) -> Page:
    return await look(browser, do="create", **typed)


async def stage(pool: Pool, **options: Any) -> None:
    stager = Stager(pool, **options)
    while await stager.round():
        pass


async def test_the_hour_of_a_campaign_is_no_period(owner: Browser) -> None:
    """In English one word used to serve both."""
    assert "Dia opcional Hora opcional" in (await owner.get("/campaigns/new", Accept_Language="pt")).words
    assert "Período" in (await owner.get("/messages", Accept_Language="pt")).words


async def test_who_gets_it_is_counted_before_it_is_made(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await people(pool, tenant, 20)
    await pool.execute(
        "INSERT INTO opt_outs (organization_id, recipient, since, source)"
        " VALUES ($1, '+258841000001', now(), 'keyword')",
        tenant.id,
    )
    assert "No campaign yet" in (await owner.get("/campaigns")).words
    page = await look(owner, tags="all, odd", match="all")
    for said in ("Found 10", "opted out −1", "Get it 9", "9 people: 1 segment", "Cost 9 messages", "Quota after 991"):
        assert said in page.words, (said, page.words)
    assert "Hello P" in page.words
    # On a phone it is below the form: the page scrolls to it, unless there is an error.
    opens = '<h2 id="check" tabindex="-1" autofocus>'
    assert (opens in page.text, opens in (await look(owner, tags="")).text) == (True, False)
    assert await pool.fetchval("SELECT count(*) FROM campaigns") == 0
    page = await look(owner, to="numbers", numbers="+258841000001\n+258841000002, 12", text="x" * 200)
    for said in (
        "Found 3",
        "opted out −1",
        "invalid number, destination not supported, or text too long or empty −1",
        "1 person: 2 segments",
    ):
        assert said in page.words, (said, page.words)
    page = await make(owner)
    assert ("The campaign is created." in page.words, page.path.startswith("/campaigns/")) == (True, True)
    assert await pool.fetchval("SELECT who FROM audit_log WHERE action = 'campaign.created'") == "person"


async def test_who_lacks_a_value_of_the_text_is_counted(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """Otherwise nothing would say that half of them are greeted with "Hello ,". Skipped contacts do not count."""
    await people(pool, tenant, 5)
    await pool.execute("UPDATE contacts SET first_name = 'Ana' WHERE phone IN ('+258841000001', '+258841000002')")
    await pool.execute(
        "INSERT INTO opt_outs (organization_id, recipient, since, source)"
        " VALUES ($1, '+258841000003', now(), 'keyword')",
        tenant.id,
    )
    page = await look(owner, text="Hello {{first_name}}, {{name}}!")
    assert "2 people have no first name and get nothing instead: Hello , P" in page.words, page.words
    assert "no full name" not in page.words
    page = await look(owner, text="Hello {{first_name|customer}}, yes {{ first_name | customer }}!")
    assert page.words.count("2 people have no first name and get “customer” instead.") == 1, page.words
    page = await look(owner, text="Hello {{last_name}}", to="numbers", numbers="+258841000009")
    assert "1 person has no last name and gets nothing instead: Hello" in page.words, page.words
    for text in ("Hello {{phone}}", "Hello"):
        assert " nothing instead" not in (await look(owner, text=text)).words


async def test_single_braces_are_said_to_be_sent_as_they_are(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await people(pool, tenant, 1)
    page = await look(owner, text="Hello {name}, {first_name|you}, {{name}}, {{phone}}{1}, {name} { a: b } {}")
    for written in ("{name}", "{first_name|you}", "{1}"):
        assert page.words.count(f"{written} is sent as it is: a placeholder has two braces") == 1, page.words
    assert page.words.count("is sent as it is") == 3
    assert "is sent as it is" not in (await look(owner, text="Hello {{ name | you }}")).words


async def test_an_hour_that_the_clocks_skip_is_refused(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await people(pool, tenant, 1)
    await pool.execute("UPDATE users SET time_zone = 'Europe/Lisbon'")
    said = "There is no such time on that day: the clocks go forward past it."
    for hour, is_refused in (("00:59", False), ("01:00", True), ("01:59", True), ("02:00", False)):
        page = await look(owner, when="later", day="2026-03-29", hour=hour)
        assert (page.status, said in page.words) == (422, is_refused), (hour, page.words)
    # Of the hour that occurs twice, the first one is used.
    twice = local_times.read("2026-10-25", "01:30", "Europe/Lisbon")
    assert twice.astimezone(UTC) == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)


def test_what_follows_a_time_follows_it_past_a_change_of_the_clocks() -> None:
    """Half a campaign's turns were an hour early when it was checked who has quiet hours then."""
    begins = local_times.read("2027-03-14", "01:58", "America/New_York")
    assert begins + timedelta(hours=2) == datetime(2027, 3, 14, 8, 58, tzinfo=UTC)
    for day, zone in (("0001-01-01", "Asia/Tokyo"), ("9999-12-31", "America/New_York")):
        with pytest.raises(ValueError, match=day):
            local_times.read(day, "23:30" if day > "1" else "00:30", zone)


async def test_of_an_hour_that_comes_twice_it_is_told_which_one_is_meant(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    await people(pool, tenant, 1)
    await pool.execute("UPDATE users SET time_zone = 'America/New_York'")
    page = await make(owner, when="later", day=f"{datetime.now(UTC) + timedelta(days=2):%F}", hour="10:00")
    for at, shown in (("06:30", "01:30 -05:00"), ("05:30", "01:30 -04:00"), ("04:30", "00:30")):
        await pool.execute("UPDATE campaigns SET scheduled_at = $1", datetime.fromisoformat(f"2027-11-07T{at}+00:00"))
        words = (await owner.get(page.path)).words
        assert words.count(f"7 Nov 2027, {shown} (America/New_York)") == 2, words


async def test_a_text_of_several_lines_has_them_as_handsets_do(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """Exactly one segment: a browser's line breaks have two characters each."""
    await people(pool, tenant, 1)
    text = f"{'a' * 79}\r\n{'b' * 80}"
    assert "1 person: 1 segment" in (await look(owner, text=text)).words
    await make(owner, text=text)
    await stage(pool)
    said = await pool.fetchrow("SELECT body, segments FROM messages")
    assert tuple(said) == (text.replace("\r\n", "\n"), 1)


async def test_pasted_numbers_are_read_as_the_country_writes_them(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """84 123 4567 is a number in Mozambique there, and would be one in Vietnam elsewhere: neither is assumed
    silently."""
    typed = {"to": "numbers", "numbers": "84 123 4567\n841000002; 0000\n+351912345678\n351912345678", "text": "Hi"}
    page = await look(owner, **typed)
    for said in (
        "Found 5",
        "invalid number, destination not supported, or text too long or empty −4",
        "Get it 1",
        "84 123 4567 ⊘ no number, left out",
    ):
        assert said in page.words, (said, page.words)
    assert "+841234567" not in page.text
    page = await look(owner, **typed | {"numbers": "84 123 4567"})
    assert (page.status, "Your organization has no country, so other numbers" in page.words) == (422, True)
    await pool.execute("UPDATE organizations SET country = 'MZ' WHERE id = $1", tenant.id)
    page = await look(owner, **typed)
    for said in ("As people write them in Mozambique", "Get it 3", "84 123 4567 +258841234567", "351912345678 ⊘ no"):
        assert said in page.words, (said, page.words)
    # A Portuguese national number has a possible length in Mozambique, where no network uses it.
    doubtful = (await look(owner, **typed | {"numbers": "841000002\n912345678"})).words
    assert "912345678 +258912345678" in doubtful, doubtful
    assert doubtful.count("not in any known range") == 1
    assert doubtful.index("912345678 +") < doubtful.index("841000002 +")
    draft = page.form("/campaigns")["draft"]
    assert await pool.fetchval("SELECT numbers FROM campaign_drafts WHERE id = $1", UUID(draft)) == [
        "+258841234567",
        "+258841000002",
        "0000",
        "+351912345678",
        "351912345678",
    ]
    # A number that could not be read is still found by a person who wants to be erased.
    async with pool.acquire() as conn:
        await erasure.erase(conn, tenant.actor, address="+351912345678")
        assert await conn.fetchval("SELECT cardinality(numbers) FROM campaign_drafts WHERE id = $1", UUID(draft)) == 3
    await make(owner, **typed)
    assert sorted(await pool.fetchval("SELECT array_agg(phone) FROM campaign_recipients")) == [
        "+258841000002",
        "+258841234567",
        "+351912345678",
    ]


async def test_who_waits_for_the_end_of_quiet_hours_is_counted(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await people(pool, tenant, 3)
    await pool.execute("UPDATE organizations SET quiet_hours = 'off' WHERE id = $1", tenant.id)
    assert "Quiet hours where they are" not in (await look(owner)).words
    await quiet_now(pool, tenant.actor)
    page = await look(owner)
    assert "Quiet hours where they are 3 people get it later: it is quiet there until" in page.words
    # At one per minute, the last message is due at 12:02 in Maputo.
    await pool.execute("UPDATE organizations SET quiet_hours = '12:02-13:00' WHERE id = $1", tenant.id)
    at = {"when": "later", "day": f"{datetime.now(UTC) + timedelta(days=2):%F}", "hour": "10:00"}
    assert "Quiet hours where they are" not in (await look(owner, **at)).words
    assert "Quiet hours where they are 1 person gets it later" in (await look(owner, pace="1", **at)).words
    await quiet_now(pool, tenant.actor)
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, simulated, created_at, changed_at)"
        " VALUES (gen_random_uuid(), 'played', 'smpp', '{}', '', true, now(), now())"
    )
    assert "Quiet hours where they are" not in (await look(owner)).words


async def test_tags_that_are_left_out_are_counted_and_shown(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await people(pool, tenant, 20)
    page = await look(owner, without="odd, other")
    for said in ("Found 20", "have an excluded tag −10", "opted out 0", "Get it 10"):
        assert said in page.words, (said, page.words)
    page = await make(owner, without="odd, other")
    assert "Left out odd other" in page.words
    await stage(pool)
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE recipient LIKE '%1'") == 0
    assert await pool.fetchval("SELECT count(*) FROM messages") == 10
    day = f"{datetime.now(UTC) + timedelta(days=2):%F}"
    await make(owner, name="Later", without="odd", when="later", day=day, hour="12:00")
    page = await owner.get("/contacts/tags/edit?tag=odd")
    assert "use this tag: Later. Without it" in page.words
    page = await look(owner, to="numbers", numbers="+258841000001", without="odd")
    assert (page.status, "empty this field, or choose contacts by tag" in page.words) == (422, True)
    page = await look(owner, without="x" * 65)
    assert (page.status, "Enter at most 20 tags" in page.words) == (422, True)


async def test_it_is_tried_on_oneself_before_anything_is_made(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await people(pool, tenant, 3)
    page = await look(owner)
    assert ("Send to myself" in page.words, "Add your own number" in page.words) == (False, True)
    assert (await look(owner, do="trial")).status == 200
    assert await pool.fetchval("SELECT count(*) FROM messages") == 0

    await pool.execute(
        "INSERT INTO own_numbers (user_id, phone, codes, codes_since) SELECT id, $1, 1, now() FROM users", OWN
    )
    page = await look(owner)
    shown = re.search(r'<p class="bubble">(Hello P\d)</p>', page.text)
    assert (shown is not None, "Send to myself" in page.words) == (True, True)
    chosen = {"to": "tags", "when": "now", "text": "Hello {{name}}"}
    form = page.form("/campaigns") | chosen | {"do": "trial"}
    for _ in range(2):  # a double click
        page = await owner.post("/campaigns", form)
        assert "as the first example will get it. Nothing else has been sent yet." in page.words
    row = await pool.fetchrow("SELECT recipient, body, sender, class, campaign_id, person_id FROM messages")
    assert row is not None
    assert shown is not None
    assert (row["recipient"], row["body"], row["class"], row["campaign_id"]) == (OWN, shown[1], "marketing", None)
    assert row["person_id"] == await pool.fetchval("SELECT id FROM users")
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1
    assert await pool.fetchval("SELECT count(*) FROM campaigns") == 0
    followed = re.search(r'href="(/messages/[^"]+)">Follow it', page.text)
    assert followed is not None
    assert (await owner.get(followed[1])).status == 200
    # The form is kept, with the chosen sender: if it is no longer approved, the error is at its field.
    form = page.form("/campaigns") | chosen
    assert (form["name"], form["tags"]) == ("Sale", "all")
    sender = await pool.fetchval("SELECT id FROM sender_ids")
    await pool.execute("UPDATE sender_ids SET status = 'rejected', is_default = false")
    page = await owner.post("/campaigns", form | {"do": "trial", "sender": str(sender)})
    assert (page.status, 'href="#sender"' in page.text) == (422, True), page.words
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1


async def test_what_is_wrong_is_said_at_its_field(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await look(owner, name="", tags="", text="{{surname}}", when="later", pace="fast")
    assert page.status == 422
    for field in ("name", "tags", "text", "day", "pace"):
        assert f'href="#{field}"' in page.text, field
    assert "There is no such placeholder" in page.words
    assert "A placeholder lacks its braces on one side" in (await look(owner, text="Hi {{name}")).words
    # A misspelled tag: without recipients there is no button.
    page = await look(owner, tags="nope")
    assert ("Nobody would get it" in page.words, 'value="create"' in page.text) == (True, False)
    page = await look(owner, tags="nope", when="later", day=f"{datetime.now(UTC) + timedelta(days=2):%F}", hour="10:00")
    assert ("Nobody would get it" in page.words, 'value="create"' in page.text) == (False, True)
    # A time at which it could not be created is refused by the check, which would otherwise report no problem.
    page = await look(owner, when="later", day="2026-01-01", hour="10:00")
    assert (page.status, "must be between a minute ago and 365 days ahead" in page.words) == (422, True)
    page = await make(owner)
    assert (page.status, "has no recipients" in page.words) == (422, True)


async def test_a_text_of_very_many_placeholders_is_too_long(tenant: Tenant, owner: Browser) -> None:
    """Only the API used to refuse it: a worker needed 10 ms per recipient to fill in a megabyte."""
    page = await look(owner, text="Hi" + "{{name}}" * 200)
    assert page.status == 422
    assert 'href="#text"' in page.text
    assert (await look(owner, to="numbers", numbers="+258841000000", text="Hi" + "{{name}}" * 199)).status == 200


@pytest.mark.parametrize("start", ["9" * 5000, "٣", "x", ""])
async def test_whatever_stands_in_the_field_of_the_examples_shows_some(
    tenant: Tenant, owner: Browser, start: str
) -> None:
    assert (await look(owner, to="numbers", numbers="+258841000000", do="shuffle", start=start)).status == 200


async def test_many_are_confirmed_by_their_number(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.dashboard.audience.composing.new.MANY", 5)
    await people(pool, tenant, 8)
    page = await make(owner)
    assert (page.status, "Type how many people get it." in page.words) == (422, True)
    assert "type 8 to confirm optional" not in page.words
    assert (await make(owner, typed="7")).status == 422
    assert "The campaign is created." in (await make(owner, typed="8")).words
    # The check's warning is still shown if it is not confirmed.
    assert "A campaign with the same text was created" in (await make(owner, typed="7")).words


async def test_of_an_audience_that_was_not_counted_to_its_end_the_cost_is_a_bound(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await people(pool, tenant, 8)
    words = (await look(owner, pace="4")).words
    assert "Cost 8 messages Quota after 992 Duration 2 min" in words, words
    monkeypatch.setattr("heliograph.campaigns.views.preview.MOST", 6)
    words = (await look(owner, pace="3")).words
    assert "Cost 6+ messages Quota after at most 994 Duration 2 min+" in words, words


async def test_a_campaign_is_paused_resumed_and_canceled(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await people(pool, tenant, 6)
    page = await make(owner)
    where = page.path
    stager = Stager(pool, chunk=2)
    while await pool.fetchval("SELECT count(*) FROM messages") < 4:
        await stager.round()
    page = await owner.submit(await owner.get(where), where + "/pause")
    assert "Somebody paused this campaign." in page.words
    await stage(pool)
    # Nothing more is staged, nothing is due, and everybody is still counted.
    assert (
        await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'sms' AND due_at < now() + interval '1 year'") == 0
    )
    page = await owner.get(where)
    for said in ("Waiting 2", "Queued 4", "Total 6"):
        assert said in page.words, (said, page.words)
    page = await owner.submit(page, where + "/resume")
    assert "The campaign is resumed." in page.words
    await stage(pool)
    assert (
        await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'sms' AND due_at <= now() + interval '1 minute'")
        == 6
    )
    assert await pool.fetchval("SELECT count(DISTINCT recipient) FROM messages") == 6
    ask = await owner.get(where + "/cancel")
    assert "6 people who are still waiting do not get it. 6 queued messages are canceled and refunded" in ask.words
    page = await owner.submit(ask, where + "/cancel")
    assert "The campaign is canceled" in page.words
    # Whoever asks for it again, from a page loaded before, sees that it has ended.
    again = await owner.get(where + "/cancel")
    assert (again.path, "This campaign has ended." in again.words) == (where, True)
    await stage(pool)
    page = await owner.get(where)
    assert "Canceled 6" in page.words
    # Its creator may be somebody else, who should not have to guess. Operators are not named to organizations.
    assert "Canceled by Ana ·" in page.words
    olga = msgspec.structs.replace(tenant.actor, by=Principal("operator", name="Olga"))
    other = await make(owner, text="Hello again")
    async with pool.acquire() as conn, conn.transaction():
        await plan.cancel(conn, olga, id=UUID(other.path.rpartition("/")[2]))
    other = await owner.get(other.path)
    assert ("Canceled by the operator ·" in other.words, "Olga" in other.words) == (True, False)
    # The list consists of messages: recipients who never had one are only counted.
    assert "Whoever had no message yet counts as canceled" in page.words
    assert "Whoever had no message" not in (await owner.get(f"{where}?status=delivered")).words
    assert await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", tenant.id) == 0
    late = await owner.post(where + "/pause", ask.form(where + "/cancel") | {"_once": "late"})
    assert "cannot be paused or resumed" in late.words


async def test_a_campaign_that_stalled_in_the_meantime_is_not_said_to_be_resumed(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """A colleague resumed it, and then the quota was used up, while the page still had the button."""
    where = (await make(owner, to="numbers", numbers="+258841000001", text="Hello")).path
    await stage(pool)
    before = await owner.submit(await owner.get(where), where + "/pause")
    await pool.execute("UPDATE campaigns SET status_reason = 'quota_exceeded'")
    form = before.form(where + "/resume")
    for _ in range(2):  # also to a double click
        page = await owner.post(where + "/resume", form)
        assert ("The campaign is resumed." in page.words, page.is_refusal) == (False, True)
        assert "The campaign resumes automatically as soon as it can. The quota" in page.words, page.words
    assert await pool.fetchval("SELECT status FROM campaigns") == "paused"


async def test_a_campaign_that_is_kept_from_sending_leads_to_the_cure(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    where = (await make(owner, to="numbers", numbers="+258841000001", text="Hello")).path
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    assert 'class="button" href="/usage"' not in (await owner.get(where)).text
    for reason, path, sees in (
        ("quota_exceeded", "/usage", False),
        ("spend_limit_reached", "/settings/limits", False),
        ("wallet_insufficient_funds", "/wallet", False),
        ("whatsapp_messaging_limit_reached", "/numbers", True),
        ("sender_id_not_approved", "/senders", True),
    ):
        status = "failed" if reason == "sender_id_not_approved" else "paused"
        await pool.execute("UPDATE campaigns SET status = $1, status_reason = $2", status, reason)
        page, seen = await owner.get(where), await other_browser.get(where)
        cure = why("campaign", reason)
        assert cure is not None
        assert cure.en.remedy in page.words, reason
        assert f'href="{cure.address}">Read more<' in page.text, reason
        assert f'class="button" href="{path}"' in page.text, reason
        assert (f'href="{path}"' in seen.text.partition('id="state"')[2]) == sees, reason
    made = await making.made(pool, organization_id=tenant.id)
    campaign = await making.campaign(pool, made)
    await pool.execute(
        "UPDATE campaigns SET status = 'paused', status_reason = 'whatsapp_template_not_approved' WHERE id = $1",
        campaign,
    )
    assert f'class="button" href="/templates/{made.template_id}"' in (await owner.get(f"/campaigns/{campaign}")).text


async def test_what_was_refused_before_it_was_sent_is_told_from_what_failed_afterwards(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    await people(pool, tenant, 4)
    where = (await make(owner, unwritten="7", without="nobody's")).path
    await stage(pool)
    await pool.execute("DELETE FROM queue")
    await pool.execute("UPDATE messages SET status = 'delivered', sent_at = now(), delivered_at = now()")
    for number, status, sent in (("+258841000003", "undelivered", "sent_at"), ("+258841000002", "expired", "NULL")):
        await pool.execute(
            f"UPDATE messages SET delivered_at = NULL, sent_at = {sent}, failed_at = now(), status = $2::text,"
            " failure_code = $2 WHERE recipient = $1",
            number,
            status,
        )
    await count(pool)
    page = await owner.get(where)
    for said in ("Sent, whatever the outcome 3", "Failed, though sent 1", "Failed before it was sent 1", "Total 4"):
        assert said in page.words, (said, page.words)
    # A supplier that had accepted it after all reports so later.
    await pool.execute("UPDATE messages SET sent_at = now() WHERE sent_at IS NULL")
    await count(pool)
    # Except in the chart: the count of an earlier minute stays there.
    await pool.execute("DELETE FROM campaign_minutes")
    page = await owner.get(where)
    assert ("Failed 2" in page.words, "before it was sent" in page.words) == (True, False)


async def test_who_did_not_get_it_is_seen_taken_away_and_tried_again(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    await people(pool, tenant, 4)
    page = await make(owner, unwritten="7", without="nobody's")
    where = page.path
    await stage(pool)
    await pool.execute("DELETE FROM queue")
    await pool.execute("UPDATE contacts SET written_at = now()")
    await pool.execute("UPDATE messages SET status = 'delivered', sent_at = now(), delivered_at = now()")
    await pool.execute(
        "UPDATE messages SET status = 'undelivered', failure_code = 'undelivered', failed_at = now(),"
        " delivered_at = NULL WHERE recipient = '+258841000003'"
    )
    await count(pool)
    page = await owner.get(where)
    for said in ("Completed", "Delivered 3", "Failed 1", "Total 4", "Mozambique"):
        assert said in page.words, (said, page.words)
    page = await owner.get(where + "?status=undelivered")
    assert re.findall(r'row-link" href="[^"]*">([^<]+)<', page.text) == ["+258841000003"]
    for said in ("The audience 4", "Sent, whatever the outcome 4", "Delivered 3"):
        assert said in page.words, (said, page.words)
    file = await fetch(pool, owner, page, where + "/export", format="csv")
    rows = list(csv.DictReader(io.StringIO(file.text.removeprefix("\ufeff"))))
    assert [(row["to"], row["status"]) for row in rows] == [("+258841000003", "undelivered")]
    assert await pool.fetchval("SELECT object_id::text FROM audit_log WHERE action = 'campaign.exported'") in where
    again = re.search(r'href="(/campaigns/new[^"]*)"[^>]*>Send to those', page.text)
    assert again
    form = await owner.get(again[1].replace("&amp;", "&"))
    fields = form.form("/campaigns") | {"to": "again", "text": "Hello again", "do": "preview", "when": "now"}
    page = await owner.post("/campaigns", fields)
    assert "Get it 1 Segments" in page.words, page.words
    page = await owner.post("/campaigns", fields | {"do": "create"})
    assert "The campaign is created." in page.words, page.words
    assert [row["phone"] for row in await pool.fetch("SELECT phone FROM campaign_recipients")][-1] == "+258841000003"
    # Once: whoever asks for it a second time, as a colleague may, finds nobody left, until that one is canceled.
    tried = page.path
    page = await owner.post("/campaigns", fields | {"do": "create"})
    assert ("The campaign is created." in page.words, page.path) == (True, tried), "the same form"
    for stage_it in (False, True):
        if stage_it:
            await stage(pool)
        page = await owner.post("/campaigns", fields | {"_once": str(uuid7())})
        assert "There is nobody left to try again." in page.words, page.words
    await owner.post(tried + "/cancel", (await owner.get(tried + "/cancel")).form(tried + "/cancel"))
    await stage(pool)
    page = await owner.post("/campaigns", fields | {"_once": str(uuid7())})
    assert "Get it 1 Segments" in page.words, page.words
    # Or was sent.
    page = await owner.post("/campaigns", fields | {"do": "create", "_once": str(uuid7())})
    await stage(pool)
    await pool.execute("DELETE FROM queue")
    await pool.execute(
        "UPDATE messages SET status = 'undelivered', sent_at = now(), failed_at = now() WHERE status = 'accepted'"
    )
    await count(pool)
    assert "Completed" in (await owner.get(page.path)).words
    page = await owner.post("/campaigns", fields | {"_once": str(uuid7())})
    assert "There is nobody left to try again." in page.words, page.words


async def test_two_people_who_try_the_same_recipients_again_at_once_reach_them_once(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """Each has loaded the list before the other one created the campaign."""
    await people(pool, tenant, 2)
    where = (await make(owner)).path
    await stage(pool)
    await pool.execute("DELETE FROM queue")
    await pool.execute("UPDATE messages SET status = 'undelivered', sent_at = now(), failed_at = now()")
    await count(pool)
    id = UUID(where.rpartition("/")[2])
    async with pool.acquire() as conn:
        campaign = await record.get(conn, tenant.actor, id=id)

        async def second() -> list[str]:
            async with pool.acquire() as other, other.transaction():
                return await recipients.again(other, tenant.actor, campaign=campaign, holds=True)

        async with conn.transaction():
            listed = await recipients.again(conn, tenant.actor, campaign=campaign, holds=True)
            waiting = asyncio.create_task(second())
            spec = sms_channel.SmsCampaignSpec(name="A", message_template="Hi", recipients=listed, again_of=id)
            await sms_channel.create(conn, tenant.actor, spec=spec, request_id="a")
            assert not waiting.done()
        assert (len(listed), await waiting) == (2, [])


async def test_who_did_not_get_it_is_found_among_many_later_messages(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it has completed, was canceled, or waits for its last receipts."""
    await people(pool, tenant, 4)
    where = (await make(owner)).path
    await stage(pool)
    await pool.execute("DELETE FROM queue")
    await pool.execute("UPDATE messages SET status = 'sent', sent_at = now() WHERE recipient <> '+258841000003'")
    await pool.execute(
        "UPDATE messages SET status = 'undelivered', failure_code = 'undelivered', failed_at = now()"
        " WHERE recipient = '+258841000003'"
    )
    await count(pool)
    # Two hours later, many more have been sent.
    hours = timedelta(hours=2)
    for column in ("created_at", "started_at", "drained_at"):
        await pool.execute(f"UPDATE campaigns SET {column} = {column} - $1::interval", hours)
    for id, at in await pool.fetch("SELECT id, accepted_at FROM messages"):
        earlier = UUID(int=uuid7_floor(at - hours).int + id.int % 2**62)
        await pool.execute("UPDATE messages SET id = $2, accepted_at = $3 WHERE id = $1", id, earlier, at - hours)
    await make(owner, name="Later", text="More")
    await stage(pool)
    monkeypatch.setattr("heliograph.base.database.bounded_scan.LOOK", 5)
    monkeypatch.setattr("heliograph.dashboard.audience.campaign_recipients.PAGE_LOOK", 5)
    page = await owner.get(where)
    found = re.findall(r'row-link" href="[^"]*">([^<]+)<', page.text)
    assert sorted(found) == [f"+25884100000{n}" for n in range(4)]
    for said in ("All are handed over; 3 reports are missing.", "Mozambique 1"):
        assert said in page.words, (said, page.words)
    for said in ("Search further", "Among the latest"):
        assert said not in page.words, (said, page.words)


async def test_who_was_skipped_is_seen_with_the_reason_and_taken_away(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await people(pool, tenant, 4)
    await pool.execute("UPDATE contacts SET written_at = now() - interval '1 day' WHERE phone = '+258841000003'")
    await pool.execute("INSERT INTO opt_outs VALUES ($1, '+258841000002', now(), 'test')", tenant.id)
    page = await look(owner, unwritten="7")
    for said in ("Found 4", "opted out −1", "messaged too recently −1", "Get it 2"):
        assert said in page.words, (said, page.words)
    page = await look(owner, unwritten="0")
    assert (page.status, "Enter a number of days from 1 to 365." in page.words) == (422, True)
    where = (await make(owner, unwritten="7")).path
    await stage(pool)
    page = await owner.get(where)
    for said in (
        "Skipped: opted out 1",
        "Skipped: messaged too recently 1",
        "in the last 7 days",
        "Can be messaged 2",
    ):
        assert said in page.words, (said, page.words)
    assert "skipped=no_number" not in page.text
    page = await owner.get(where + "?skipped=recently_written")
    assert re.findall(r"<td><bdi>([^<]+)</bdi></td>", page.text) == ["+258841000003"]
    assert "P3 Messaged too recently" in page.words
    file = await fetch(pool, owner, page, where + "/export", format="csv")
    rows = list(csv.DictReader(io.StringIO(file.text.removeprefix("\ufeff"))))
    assert [(row["to"], row["name"], row["reason"]) for row in rows] == [("+258841000003", "P3", "recently_written")]
    told = await pool.fetchval("SELECT after FROM audit_log WHERE action = 'campaign.exported'")
    assert "recently_written" in told
    # Someone who does not see whole numbers sees no names either, in the file and on the page.
    async with pool.acquire() as conn:
        wanted = kinds.Skipped(form="jsonl", campaign_id=UUID(where[-36:]), reason="opted_out", sees="own")
        written = await kinds.page(conn, tenant.actor, wanted, after=None, is_first=True)
    assert ('"to":"••• 0002","name":""' in written.text, written.rows, written.after) == (True, 1, None)
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    page = await other_browser.get(where + "?skipped=opted_out")
    assert ("••• 0002" in page.words, "+258841000002" in page.text, "P2" in page.words) == (True, False, False)
    copied = await owner.get(f"/campaigns/new?copy={where.rpartition('/')[2]}")
    assert copied.form("/campaigns")["unwritten"] == "7"


async def test_a_viewer_sees_and_changes_nothing(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await people(pool, tenant, 2)
    where = (await make(owner)).path
    await stage(pool)
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    page = await other_browser.get(where)
    assert ("+25884100" in page.text, "Pause" in page.words, "••• 0001" in page.words) == (False, False, True)


async def test_another_organizations_campaigns_are_nobodys(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await people(pool, tenant, 2)
    where = (await make(owner)).path
    other = await make_tenant(pool)
    await make_person(pool, other, "eva@example.com")
    await other_browser.sign_in("eva@example.com")
    token = (await other_browser.get("/contacts/new")).form("/contacts")
    assert (await other_browser.get(where)).status == 404
    for act in ("pause", "resume", "cancel", "export"):
        assert (await other_browser.post(f"{where}/{act}", token)).status == 404, act


async def test_a_whatsapp_campaign_is_looked_at_made_and_followed(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await people(pool, tenant, 3)
    made = await making.made(pool, organization_id=tenant.id)
    await pool.execute("UPDATE contacts SET first_name = 'Ana' WHERE phone = '+258841000001'")
    form = (await owner.get("/campaigns/new?channel=whatsapp")).form("/campaigns")
    typed = {"name": "Delivery", "to": "tags", "tags": "all", "when": "now", "number": str(made.number_id)}
    # A template has its values' fields once it is chosen.
    page = await owner.post("/campaigns", form | typed | {"do": "template", "template": str(made.template_id)})
    assert "Hello {{1}}, your order {{2}} was shipped." in page.words
    form = page.form("/campaigns")
    assert {name for name in form if re.fullmatch(r"[pt]\d", name)} == {"p1", "t1", "p2", "t2"}
    form |= typed | {"do": "preview", "p1": "first_name", "t1": "customer", "p2": "text", "t2": ""}
    page = await owner.post("/campaigns", form)
    assert (page.status, 'href="#t2"' in page.text) == (422, True), page.words
    page = await owner.post("/campaigns", form | {"t1": "two\tparts", "t2": "4471"})
    assert (page.status, 'href="#t1"' in page.text, 'href="#t2"' in page.text) == (422, True, False), page.words
    page = await owner.post("/campaigns", form | {"t2": "4471"})
    for said in (
        "Get it 3",
        "at most €0.03, for what is delivered",
        "Wallet after €99.97",
        "Hello Ana, your order 4471",
    ):
        assert said in page.words, (said, page.words)
    assert "Hello customer, your order 4471 was shipped." in page.words
    assert "2 people have no first name and get “customer” instead." in page.words
    found = (await owner.post("/campaigns", form | {"t1": "", "t2": "4471"})).words
    assert ("Get it 1" in found, "2 people have no first name and are skipped" in found) == (True, True), found
    assert "with the same text" not in page.words
    page = await owner.post("/campaigns", page.form("/campaigns") | typed | {"do": "create"})
    assert "The campaign is created." in page.words, page.words
    where = page.path
    # The person who approves it, or reads it later, sees more than the template's name.
    shown = "Hello {{first_name|customer}}, your order 4471 was shipped."
    assert shown in page.words
    # The template is not read for each refresh of the progress; and without it, the rest of the page is shown.
    with monkeypatch.context() as patch:
        reads = []

        async def get(*_: Any, **named: Any) -> None:
            reads.append(named)
            raise ValueError

        patch.setattr(library, "get", get)
        assert ((await owner.get(where, HX_Request="true")).status, reads) == (200, [])
        page = await owner.get(where)
        assert (page.status, len(reads), shown in page.words) == (200, 1, False)
        assert "Template This part could not be loaded" in page.words
    await stage(pool)
    rows = await pool.fetch("SELECT content::jsonb ->> 'parameters' AS said FROM whatsapp_messages ORDER BY recipient")
    assert [row["said"] for row in rows] == ['["customer", "4471"]', '["Ana", "4471"]', '["customer", "4471"]']
    await pool.execute(
        "UPDATE whatsapp_messages SET status = 'failed', failure_code = 'undeliverable', failed_at = now(),"
        " sent_at = NULL WHERE recipient = '+258841000001'"
    )
    await count(pool)
    # A second click returns to the list in which it was made.
    id = await pool.fetchval("UPDATE campaigns SET status = 'running' RETURNING id")
    listed = await owner.get("/campaigns?channel=whatsapp")
    pause = f"/campaigns/{id}/pause"
    for _ in range(2):
        page = await owner.post(pause, listed.form(pause))
        assert (page.path, "The campaign is paused." in page.words) == ("/campaigns?channel=whatsapp", True)
    page = await owner.get(where + "?status=failed")
    assert re.findall(r'row-link" href="[^"]*">([^<]+)<', page.text) == ["+258841000001"]
    for said in ("Failed, though sent or possibly sent 0", "Failed before it was sent 1", "Why messages failed"):
        assert said in page.words, said
    assert "with the same text" in (await owner.post("/campaigns", form | {"t2": "4471"})).words
    copy = (await owner.get(f"/campaigns/new?copy={where.rpartition('/')[2]}")).form("/campaigns")
    assert (copy["name"], copy["tags"], copy["t1"], copy["t2"]) == ("Delivery", "all", "customer", "4471")
    # A number that was removed meanwhile, and a template that is no longer approved, are reported at their fields.
    await pool.execute("UPDATE whatsapp_templates SET status = 'paused'")
    page = await owner.post("/campaigns", form | {"t2": "4471"})
    assert (page.status, "not currently approved" in page.words) == (422, True), page.words
    await pool.execute("UPDATE whatsapp_templates SET status = 'removed'")
    assert "order_shipped (" in (await owner.get(where)).words


async def check_by_template(owner: Browser, made: making.Made) -> str:
    """The words of the check of a WhatsApp campaign to everybody."""
    form = (await owner.get("/campaigns/new?channel=whatsapp")).form("/campaigns")
    typed = {"name": "Delivery", "to": "tags", "tags": "all", "when": "now", "number": str(made.number_id)}
    page = await owner.post("/campaigns", form | typed | {"do": "template", "template": str(made.template_id)})
    typed |= {"p1": "first_name", "t1": "customer", "p2": "text", "t2": "4471"}
    return (await owner.post("/campaigns", page.form("/campaigns") | typed | {"do": "preview"})).words


async def test_what_a_whatsapp_campaign_costs_is_in_the_currency_of_its_account(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """A wallet in another one pays for none of it: prices in euros used to be subtracted from its dollars."""
    await people(pool, tenant, 2)
    made = await making.made(pool, organization_id=tenant.id)
    await pool.execute("UPDATE wallets SET currency = 'USD'")
    words = await check_by_template(owner, made)
    assert "at most €0.02, for what is delivered Wallet after ◷ not enough: it would pause" in words, words


async def test_who_came_through_an_advertisement_needs_no_money_in_the_check_either(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    await people(pool, tenant, 2)
    made = await making.made(pool, organization_id=tenant.id, balance=0)
    words = await check_by_template(owner, made)
    assert "at most €0.02, for what is delivered Wallet after ◷ not enough: it would pause" in words, words
    users = [f"+25884{1_000_000 + n}" for n in range(2)]
    await pool.execute(OPEN, tenant.id, made.number_id, users, [uuid7() for _ in users])
    await pool.execute(
        "UPDATE whatsapp_conversations SET referred_at = now(), free_until = now() + interval '72 hours'"
    )
    words = await check_by_template(owner, made)
    assert "at most €0.00, for what is delivered Wallet after €0.00" in words, words


async def test_a_campaign_is_copied_and_a_wrong_sender_is_told(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await people(pool, tenant, 12)
    page = await look(owner, sender="nobody")
    assert (page.status, 'href="#sender"' in page.text) == (422, True), page.words
    page = await look(owner, pace="5")
    assert page.text.count('class="bubble"') == 10
    where = (await make(owner, pace="1.500", without="odd")).path
    assert f"copy={where.rpartition('/')[2]}" in (await owner.get(where)).text
    page = await owner.get(f"/campaigns/new?copy={where.rpartition('/')[2]}")
    copy = page.form("/campaigns")
    assert (copy["name"], copy["pace"], copy["without"]) == ("Sale", "1500", "odd")
    assert ">Hello {{name}}</textarea>" in page.text


async def test_what_a_copy_had_chosen_is_not_replaced_by_what_happens_to_be_offered(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """A choice without the chosen one shows its first: the campaign would have gone to the people of another import."""
    ids = [uuid7() for _ in range(4)]
    for n, id in enumerate(ids):
        await pool.execute(
            "INSERT INTO contact_imports (organization_id, id, file, started_at, mode, state, is_uploaded)"
            " VALUES ($1, $2, $3, now(), 'live', $4, true)",
            tenant.id,
            id,
            f"file {n}",
            "running" if n == 3 else "finished",
        )
    chosen = {"import": str(ids[0]), "to": "import"}

    async def offered() -> tuple[str, list[str]]:
        page = await look(owner, **chosen)
        found = re.search(r'<select id="import"[^>]*>(.*?)</select>', page.text, re.S)
        assert found is not None
        return page.form("/campaigns")["import"], re.findall(r"file \d|Choose one", found[1])

    # One that is running has more people than the check would count.
    assert await offered() == (str(ids[0]), ["file 2", "file 1", "file 0"])
    # Of one that was stopped, only some of its file's people would get it.
    await pool.execute("UPDATE contact_imports SET state = 'stopped' WHERE id = $1", ids[2])
    names = re.findall(r"<option[^>]*>(file [^<]*)<", (await look(owner, **chosen)).text)
    assert [" · Stopped" in one for one in names] == [True, False, False], names
    # However many are newer.
    await pool.execute("UPDATE contact_imports SET kind = 'opt_outs' WHERE id = $1", ids[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offers, "IMPORTS", 2)
        assert (await offered())[0] == str(ids[0])
    await pool.execute("UPDATE contact_imports SET state = 'undone' WHERE id = $1", ids[0])
    assert await offered() == ("", ["Choose one", "file 2"])
    await people(pool, tenant, 1)
    page = await make(owner)
    suspended = await pool.fetchval(
        "UPDATE sender_ids SET status = 'suspended', is_default = false"
        " WHERE id = (SELECT sender_id FROM campaigns) RETURNING id"
    )
    copy = await owner.get(f"/campaigns/new?copy={page.path.rpartition('/')[2]}")
    assert copy.form("/campaigns")["sender"] == str(suspended)


async def test_what_was_changed_after_the_check_is_checked_again(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """Its buttons are those of what was checked: "Schedule" would send at once, or to others than those it showed."""
    await people(pool, tenant, 4)
    day = (clock.now() + timedelta(days=2)).date().isoformat()
    typed = {"when": "later", "day": day, "hour": "10:00"}
    page = await look(owner, **typed)
    assert ("Schedule" in page.words, "Get it 4" in page.words) == (True, True), page.words
    fields = page.form("/campaigns") | {"to": "tags", "do": "create"}
    for changed in ({"when": "now"}, {"when": "later", "tags": "odd"}, {"when": "later", "text": "Goodbye"}):
        page = await owner.post("/campaigns", fields | changed)
        assert (page.status, "The campaign was changed after it was checked." in page.words) == (422, True), changed
        assert await pool.fetchval("SELECT count(*) FROM campaigns") == 0, changed
    page = await owner.post("/campaigns", fields | {"when": "later", "tags": "odd"})
    assert "Get it 2" in page.words, page.words
    # What it says by then can be sent; and the name is no part of it.
    page = await owner.post("/campaigns", page.form("/campaigns") | {"to": "tags", "when": "later", "do": "create"})
    assert "The campaign is created." in page.words, page.words
    # Nobody is counted yet, as its list says.
    assert ("Total not yet known" in page.words, "Total 0" in page.words) == (True, False), page.words
    page = await owner.post("/campaigns", fields | typed | {"name": "Winter", "_once": str(uuid7())})
    assert "The campaign is created." in page.words, page.words
    made = await pool.fetch("SELECT name, audience_tags FROM campaigns ORDER BY id")
    assert [(row["name"], row["audience_tags"]) for row in made] == [("Sale", ["odd"]), ("Winter", ["all"])]


async def test_a_copy_has_the_class_of_the_original(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """A page creates marketing; a program may have chosen another class, which has other quiet hours and prices."""
    await people(pool, tenant, 1)
    body = {"name": "Closed", "message_template": "We are closed", "audience_tags": ["all"], "class": "transactional"}
    _, _, answer = await api.ask("POST", "/campaigns", json=body, headers=tenant.headers)
    where = f"/campaigns/{answer['campaign']['id']}"
    assert "Class Transactional messages" in (await owner.get(where)).words
    form = await owner.get(f"/campaigns/new?copy={answer['campaign']['id']}")
    assert "Transactional messages" in form.words
    fields = form.form("/campaigns") | {"to": "tags", "when": "now"}
    checked = await owner.post("/campaigns", fields | {"do": "preview"})
    assert "Transactional messages" in checked.words
    page = await owner.post("/campaigns", checked.form("/campaigns") | {"to": "tags", "when": "now", "do": "create"})
    assert "Class Transactional messages" in page.words
    assert "Class Marketing messages" in (await make(owner)).words
    classes = [row["class"] for row in await pool.fetch("SELECT class FROM campaigns ORDER BY id")]
    assert classes == ["transactional", "transactional", "marketing"]


async def test_what_is_typed_is_kept_as_a_draft_until_the_campaign_is_made(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await people(pool, tenant, 2)
    form = (await owner.get("/campaigns/new")).form("/campaigns")
    typed = {"name": "Sale", "to": "numbers", "numbers": "+258 84 100 0001; nobody", "text": "Hello", "pace": "x"}
    saved = await owner.post("/campaigns/drafts", form | typed, HX_Request="true")
    assert (saved.status, saved.words.strip()) == (200, "Saved as a draft."), saved.words
    assert await pool.fetchval("SELECT numbers FROM campaign_drafts") == ["+258841000001", "nobody"]
    await owner.post("/campaigns/drafts", form | typed | {"pace": "60"}, HX_Request="true")
    assert await pool.fetchval("SELECT count(*) FROM campaign_drafts") == 1
    # A colleague can continue with it; a viewer does not see it.
    await make_person(pool, tenant, "bo@example.com", "admin")
    await other_browser.sign_in("bo@example.com")
    listed = await other_browser.get("/campaigns")
    # Erasing a person removes them from it as well.
    async with pool.acquire() as conn:
        await erasure.erase(conn, tenant.actor, address="+258841000009")
        assert await conn.fetchval("SELECT cardinality(numbers) FROM campaign_drafts") == 2
    where = re.search(r'href="(/campaigns/new\?draft=[^"]+)"[^>]*><bdi>Sale', listed.text)
    assert where is not None
    page = await other_browser.get(where[1])
    again = page.form("/campaigns")
    # Whoever has it open, too, may type something else: each is told whose work is replaced.
    over = await other_browser.post("/campaigns/drafts", again | typed, HX_Request="true")
    assert re.fullmatch(r"Saved as a draft, over what .+ saved at .+\.", over.words.strip()), over.words
    mine = await other_browser.post("/campaigns/drafts", again | typed | {"pace": "60"}, HX_Request="true")
    assert mine.words.strip() == "Saved as a draft."
    theirs = await owner.post("/campaigns/drafts", form | typed | {"pace": "60"}, HX_Request="true")
    assert theirs.words.strip().startswith("Saved as a draft, over what Bo saved at "), theirs.words
    await pool.execute("UPDATE campaign_drafts SET saved_at = now() - interval '11 minutes'")
    later = await other_browser.post("/campaigns/drafts", again | typed | {"pace": "60"}, HX_Request="true")
    assert later.words.strip() == "Saved as a draft."
    assert (again["name"], again["pace"], "+258841000001\nnobody" in page.text) == ("Sale", "60", True)
    # Checking it saves it as well; creating the campaign ends it.
    typed |= {"text": "Hello", "pace": "", "numbers": "+258841000001", "when": "now"}
    await owner.post("/campaigns", form | typed | {"text": "Goodbye", "do": "preview"})
    page = await other_browser.post("/campaigns", again | typed | {"do": "preview"})
    assert re.search(r"Saved as a draft, over what .+ saved at ", page.words), page.words
    assert await pool.fetchval("SELECT fields::jsonb ->> 'text' FROM campaign_drafts") == "Hello"
    async with pool.acquire() as conn:
        await erasure.erase(conn, tenant.actor, address="+258841000001")
        assert await conn.fetchval("SELECT cardinality(numbers) FROM campaign_drafts") == 0
    page = await other_browser.post("/campaigns", page.form("/campaigns") | typed | {"do": "create"})
    assert "The campaign is created." in page.words, page.words
    assert await pool.fetchval("SELECT count(*) FROM campaign_drafts") == 0


async def test_who_shares_a_colleagues_name_is_told_whose_draft_is_replaced(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await make_person(pool, tenant, "bo@example.com", "admin")
    await pool.execute("UPDATE users SET name = 'Ana Silva'")
    await owner.sign_in("ana@example.com")
    await other_browser.sign_in("bo@example.com")
    typed = {"name": "Sale", "text": "Hello"}
    form = (await owner.get("/campaigns/new")).form("/campaigns")
    mine = await owner.post("/campaigns/drafts", form | typed, HX_Request="true")
    assert mine.words.strip() == "Saved as a draft."
    theirs = (await other_browser.get(f"/campaigns/new?draft={form['draft']}")).form("/campaigns")
    over = await other_browser.post("/campaigns/drafts", theirs | typed, HX_Request="true")
    assert over.words.strip().startswith("Saved as a draft, over what another person named Ana Silva saved at ")


async def test_a_draft_keeps_its_time_whoever_goes_on_with_it(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """Nine o'clock in Maputo is not nine o'clock in India."""
    await make_person(pool, tenant, "bo@example.com", "admin")
    zones = {"ana@example.com": "Africa/Maputo", "bo@example.com": "Asia/Kolkata"}
    for browser, (email, zone) in zip((owner, other_browser), zones.items(), strict=True):
        await pool.execute("UPDATE users SET time_zone = $2 WHERE email = $1", email, zone)
        browser.session.cookie_jar.clear()
        await browser.sign_in(email)
    form = (await owner.get("/campaigns/new")).form("/campaigns")
    typed = {"name": "Sale", "text": "Hello", "when": "later", "day": "2027-02-28", "hour": "22:00"}
    await owner.post("/campaigns/drafts", form | typed, HX_Request="true")
    where = f"/campaigns/new?draft={form['draft']}"
    for browser, day, hour in ((owner, "2027-02-28", "22:00"), (other_browser, "2027-03-01", "01:30")):
        again = (await browser.get(where)).form("/campaigns")
        assert (again["day"], again["hour"]) == (day, hour)
    # Saved by the colleague, it is the same time.
    await other_browser.post("/campaigns/drafts", again | {"when": "later"}, HX_Request="true")
    again = (await owner.get(where)).form("/campaigns")
    assert (again["day"], again["hour"]) == ("2027-02-28", "22:00")
    # Of an hour that comes twice in New York, the form can say only the first: the second is not taken for it.
    await pool.execute("UPDATE users SET time_zone = 'America/New_York' WHERE email = 'bo@example.com'")
    other_browser.session.cookie_jar.clear()
    await other_browser.sign_in("bo@example.com")
    for typed, hour in (("07:30", "01:30"), ("08:30", "")):
        await owner.post("/campaigns/drafts", again | {"day": "2027-11-07", "hour": typed}, HX_Request="true")
        found = (await other_browser.get(where)).form("/campaigns")
        assert (found["day"], found["hour"]) == ("2027-11-07", hour)
    # Input that is not a time stays as typed.
    await owner.post("/campaigns/drafts", again | {"when": "later", "day": "soon"}, HX_Request="true")
    again = (await other_browser.get(where)).form("/campaigns")
    assert (again["day"], again["hour"]) == ("soon", "22:00")


async def test_a_number_of_a_draft_that_lacks_a_digit_does_not_become_another_one(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """There is no calling code 87, but without its + it would be a number in Mozambique."""
    form = (await owner.get("/campaigns/new")).form("/campaigns")
    numbers = "+87 123 4567; 0087 123 4568\n+85 123 4567; 123 4567; +258 84 100 0001; (+87) 123 4569"
    typed = {"name": "Sale", "to": "numbers", "numbers": numbers, "text": "Hello"}
    await owner.post("/campaigns/drafts", form | typed, HX_Request="true")
    kept = ["+871234567", "+871234568", "+851234567", "1234567", "+258841000001", "+871234569"]
    assert await pool.fetchval("SELECT numbers FROM campaign_drafts") == kept
    page = await owner.get(f"/campaigns/new?draft={form['draft']}")
    assert "\n".join(kept) in page.text
    async with pool.acquire() as conn:
        (listed,) = await drafts.list_all(conn, tenant.actor)
        opened = await drafts.get(conn, tenant.actor, id=UUID(form["draft"]))
    assert (listed.fields, listed.numbers) == (opened.fields, []), "a list of drafts need not read a million numbers"
    read = await audience.at_home(opened.numbers, home="MZ")
    assert [one for one in read.values() if one] == ["+258841000001"]


async def test_drafts_are_bounded_discarded_and_nobody_elses(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = (await owner.get("/campaigns/new")).form("/campaigns") | {"text": "Hello"}
    await owner.post("/campaigns/drafts", form)
    id = await pool.fetchval("SELECT id FROM campaign_drafts")
    assert (await owner.post("/campaigns/drafts", form | {"draft": "none"})).status == 200
    assert "too long" in (await owner.post("/campaigns/drafts", form | {"name": "x" * 100_001})).words
    monkeypatch.setattr(drafts, "SAVE", drafts.SAVE.replace("< 100", "< 1"))
    full = await owner.post("/campaigns/drafts", form | {"draft": str(uuid7())})
    assert "There are 100 drafts of campaigns." in full.words
    await owner.post("/campaigns/drafts", form | {"text": "It is there already"})
    assert await pool.fetchval("SELECT fields::jsonb ->> 'text' FROM campaign_drafts") == "It is there already"
    other = await make_tenant(pool)
    await make_person(pool, other, "eva@example.com")
    await other_browser.sign_in("eva@example.com")
    assert (await other_browser.get(f"/campaigns/new?draft={id}")).status == 404
    token = (await other_browser.get("/contacts/new")).form("/contacts")
    await other_browser.post(f"/campaigns/drafts/{id}/discard", token)
    assert await pool.fetchval("SELECT count(*) FROM campaign_drafts") == 1
    assert (await owner.get(f"/campaigns/new?mode=test&draft={id}")).status == 404
    page = await owner.submit(await owner.get("/campaigns"), f"/campaigns/drafts/{id}/discard")
    assert ("The draft is discarded." in page.words, "Drafts" in page.words) == (True, False)
    assert (await owner.get(f"/campaigns/new?draft={id}")).status == 404
    # For ten seconds it can be undone, once and only by the person who deleted it; an hour later it is erased.
    undo = f"/campaigns/drafts/{id}/restore"
    form = page.form(undo)
    assert "no longer be undone" in (await other_browser.post(undo, token)).words
    page = await owner.post(undo, form)
    assert ("The draft is restored." in page.words, "Drafts" in page.words) == (True, True)
    again = (await owner.get("/campaigns")).form(f"/campaigns/drafts/{id}/discard")
    assert "no longer be undone" in (await owner.post(undo, again)).words
    await owner.post(f"/campaigns/drafts/{id}/discard", again | {"_once": str(uuid7())})
    await pool.execute("UPDATE campaign_drafts SET discarded_at = now() - interval '61 minutes'")
    async with pool.acquire() as conn:
        await conn.execute(rules.DELETE_CAMPAIGN_DRAFTS, clock.now() - timedelta(days=30), 100)
    assert await pool.fetchval("SELECT count(*) FROM campaign_drafts") == 0


async def test_its_course_is_shown_minute_by_minute_and_its_pace_changed(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    await people(pool, tenant, 6)
    where = (await make(owner, pace="1")).path
    await Stager(pool, chunk=2).round()
    stager = Stager(pool, chunk=2)
    while await pool.fetchval("SELECT count(*) FROM messages") < 1:
        await stager.round()
    assert "Minute by minute" not in (await owner.get(where)).words
    page = await owner.post(where + "/pace", (await owner.get(where)).form(where + "/pace") | {"pace": "fast"})
    assert (page.status, 'href="#pace"' in page.text) == (422, True)
    page = await owner.submit(await owner.get(where), where + "/pace", pace="6 000")
    assert ("Messages still waiting are sent at this pace." in page.words, "6,000 a minute" in page.words) == (
        True,
        True,
    )
    await stage(pool, chunk=2)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 6
    paced = await pool.fetchrow("SELECT before, after FROM audit_log WHERE action = 'campaign.paced'")
    assert paced is not None
    assert ["1" in paced["before"], "6000" in paced["after"]] == [True, True]
    # A message that no supplier accepted was not sent.
    await pool.execute("UPDATE messages SET status = 'failed' WHERE recipient = '+258841000004'")
    await pool.execute("UPDATE messages SET status = 'sent', sent_at = now() WHERE status = 'accepted'")
    await count(pool)
    await owner.submit(await owner.get(where), where + "/pause")
    await pool.execute(
        "UPDATE messages SET status = 'delivered', delivered_at = now()"
        " WHERE status = 'sent' AND recipient <> '+258841000003'"
    )
    await pool.execute("UPDATE campaign_minutes SET minute = minute - interval '3 minutes'")
    await count(pool)
    page = await owner.get(where)
    assert "5 sent, 4 delivered. 1 failed before it was sent." in page.words, page.words
    # A single one says nothing yet; the page shows when it will, in the reader's language.
    assert "All are handed over; 1 report is missing. What is not reported by " in page.words
    first = await pool.fetchval("SELECT min(minute) FROM campaign_minutes WHERE sent > 0")
    assert f"by {locale('en').moment(first + timedelta(hours=72, minutes=1))} counts as unknown." in page.words
    figures = re.search(r"<script type=\"application/json\" data-figures>(.*?)</script>", page.text)
    assert figures is not None
    drawn = msgspec.json.decode(figures[1].replace("&#34;", '"'))
    # Four minutes, or five if one ended meanwhile: the counts are in the first and in the last one.
    handed_over, delivered, refused = (one["values"] for one in drawn["series"])
    assert (handed_over[0], sum(handed_over), delivered[-1], sum(delivered)) == (5, 5, 4, 4)
    assert (refused[0], sum(refused)) == (1, 1)
    assert [one["name"] for one in drawn["marks"]][-1:] == ["a pause"]
    file = await owner.get(where + "?csv=course")
    assert file.text.count("\n") >= 3
    ended = await pool.fetchval("UPDATE campaigns SET status = 'canceled', step_at = NULL RETURNING id")
    page = await owner.post(f"/campaigns/{ended}/pace", page.form(where + "/pace") | {"pace": "5", "_once": "late"})
    assert "cannot be paused or resumed" in page.words


async def test_statuses_beside_their_counts_are_plural_in_portuguese(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    await people(pool, tenant, 3)
    where = (await make(owner)).path
    await stage(pool)
    await pool.execute("UPDATE messages SET status = 'delivered', sent_at = now(), delivered_at = now()")
    await count(pool)
    page = await owner.get(where, Accept_Language="pt")
    assert "À espera 0 Entregues 3 Falhadas 0 Total 3" in page.words
    # One message is still one.
    assert "Entregue" in (await owner.get("/messages", Accept_Language="pt")).words
    assert "Delivered 3" in (await owner.get(where)).words


async def test_its_pace_is_that_of_the_last_minutes(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """Not the average since it started, which would include a pause, and an hour that went faster."""
    await people(pool, tenant, 1)
    where = (await make(owner)).path
    await pool.execute(
        "UPDATE campaigns SET status = 'running', started_at = now() - interval '1 hour', total = 7000, sent = 6160,"
        " pending = 840"
    )
    await pool.execute(
        "INSERT INTO campaign_minutes SELECT organization_id, id, date_trunc('minute', now() - ago), handed, 0"
        " FROM campaigns, (VALUES (interval '50 min', 6000), ('8 min', 100), ('2 min', 60)) one (ago, handed)"
    )

    async def rate() -> float:
        async with pool.acquire() as conn:
            one = await record.get(conn, tenant.actor, id=UUID(where.rpartition("/")[2]))
            return (await progress.rates(conn, tenant.actor, campaigns=[one])).get(one.id, 0)

    assert 14 < await rate() <= 16  # 160 in ten minutes, and the part of the eleventh that has passed
    page = await owner.get(where)
    assert re.search(r"1[456] a minute currently · handed over by \d", page.words), page.words
    # While nothing can be sent, the earlier pace promises nothing.
    await pool.execute("UPDATE campaigns SET queued = 1, pending = 839")
    page = await owner.get(where)
    assert "Running No route is open at present." in page.words
    assert "handed over by" not in page.words
    assert "currently" not in page.words
    # If it is night in one country, it continues in others.
    await pool.execute("UPDATE campaigns SET status_reason = 'quiet_hours'")
    page = await owner.get(where)
    assert re.search(r"1[456] a minute currently", page.words), page.words
    assert "handed over by" not in page.words
    await pool.execute("UPDATE campaigns SET status_reason = NULL")
    await pool.execute("UPDATE campaigns SET queued = 0, pending = 840")
    # Since it was resumed, if that was later; immediately afterwards there is no estimate.
    await owner.submit(await owner.get(where), where + "/pause")
    await owner.submit(await owner.get(where), where + "/resume")
    assert await rate() == 0
    assert "currently" not in (await owner.get(where)).words
    # Nobody changes the log: its last entry says that it was resumed three minutes ago.
    moved = await pool.fetchrow("SELECT * FROM audit_log WHERE action = 'campaign.moved' ORDER BY id DESC LIMIT 1")
    assert moved is not None
    # Of that minute, messages sent before the pause are counted: so the whole minute counts.
    counted = await pool.fetchval("SELECT max(minute) FROM campaign_minutes")
    values = dict(moved) | {"id": uuid7(), "at": counted + timedelta(seconds=59)}
    places = ", ".join(f"${n}" for n in range(1, len(values) + 1))
    await pool.execute(f"INSERT INTO audit_log ({', '.join(values)}) VALUES ({places})", *values.values())
    passed = "SELECT extract(epoch FROM now() - $1::timestamptz)::float8"
    least, found, most = await pool.fetchval(passed, counted), await rate(), await pool.fetchval(passed, counted)
    assert 3600 / most <= found <= 3600 / least


async def test_a_default_stands_in_and_the_same_text_is_warned_of(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await people(pool, tenant, 2)
    await pool.execute("UPDATE contacts SET first_name = 'Ana' WHERE phone = '+258841000001'")
    text = "Hello {{ first_name | dear customer }}, or {{first_name|you}}"
    page = await look(owner, text=text)
    for said in ("Hello Ana, or Ana", "Hello dear customer, or you"):
        assert said in page.words, (said, page.words)
    assert "with the same text" not in page.words
    made = await make(owner, text=text)
    await stage(pool)
    assert await pool.fetchval("SELECT array_agg(body ORDER BY recipient) FROM messages") == [
        "Hello dear customer, or you",
        "Hello Ana, or Ana",
    ]
    page = await look(owner, text=text)
    assert "A campaign with the same text was created within the last 24 hours: Sale" in page.words
    assert f'href="{made.path}"' in page.text
    assert "with the same text" not in (await look(owner, text="Hello")).words
    await pool.execute("UPDATE campaigns SET created_at = created_at - interval '25 hours'")
    assert "with the same text" not in (await look(owner, text=text)).words
    page = await look(owner, text="{{surname|x}}")
    assert (page.status, "There is no such placeholder" in page.words) == (422, True)


async def test_campaigns_of_a_time_are_listed(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await people(pool, tenant, 1)
    for name in ("Spring", "Autumn"):
        await make(owner, name=name, text=f"Hello {name}")
    made = datetime(2026, 3, 10, 12, tzinfo=UTC)
    await pool.execute(
        "UPDATE campaigns SET id = $1, created_at = $2 WHERE name = 'Spring'",
        UUID(int=uuid7_floor(made).int + 1),
        made,
    )

    async def named(query: str) -> list[str]:
        page = await owner.get(f"/campaigns{query}")
        return re.findall(r'class="row-link" href="[^"]*"><bdi>([^<]*)', page.text)

    assert await named("") == ["Autumn", "Spring"]
    assert await named("?range=24h") == ["Autumn"]
    assert await named("?from=2026-03-10&to=2026-03-10") == ["Spring"]
    assert await named("?from=2026-03-11&to=2026-03-12") == []
    page = await owner.get("/campaigns?from=2026-03-11&to=2026-03-12")
    assert "No campaign was created in this period." in page.words
    assert await named("?from=2026-03-10&to=nonsense") == ["Autumn", "Spring"]


async def test_those_under_way_stand_first_and_are_acted_on_in_the_list(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.pages.lists.pagination.USUAL", 2)
    names = ["One", "Two", "Three", "Four", "Five"]
    for name in names:
        await make(owner, name=name, to="numbers", numbers="+258841000001", text=f"Hello {name}")
    await pool.execute("UPDATE campaigns SET status = 'canceled' WHERE name <> 'Two'")
    await pool.execute("UPDATE campaigns SET status = 'running', started_at = now() WHERE name = 'Two'")

    def named(page: Page) -> list[str]:
        return re.findall(r'class="row-link" href="[^"]*"><bdi>([^<]*)', page.text)

    page = await owner.get("/campaigns")
    assert named(page) == ["Two", "Five", "Four"]
    older = re.search(r'rel="next" href="([^"]+)"', page.text)
    assert older
    assert named(await owner.get(older[1].replace("&amp;", "&"))) == ["Three", "One"]
    id = await pool.fetchval("SELECT id FROM campaigns WHERE name = 'Two'")
    assert page.text.count("/campaigns/new?copy=") == 3
    assert [f"/{id}/{act}" in page.text for act in ("pause", "resume", "cancel")] == [True, False, True]
    page = await owner.submit(page, f"/campaigns/{id}/pause")
    assert (page.path, "The campaign is paused." in page.words) == ("/campaigns", True)
    assert [f"/{id}/{act}" in page.text for act in ("pause", "resume", "cancel")] == [False, True, True]
    page = await owner.submit(page, f"/campaigns/{id}/resume")
    assert (page.path, await pool.fetchval("SELECT status FROM campaigns WHERE id = $1", id)) == (
        "/campaigns",
        "running",
    )
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    page = await other_browser.get("/campaigns")
    assert (named(page), f"/{id}/pause" in page.text, "copy=" in page.text) == (["Two", "Five", "Four"], False, False)


async def test_more_people_than_the_check_counts_need_approval_too(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "MOST", 3)
    await people(pool, tenant, 8)
    for above, needs in ((7, True), (8, False)):
        await pool.execute("UPDATE organizations SET approval_above = $2 WHERE id = $1", tenant.id, above)
        page = await look(owner)
        assert ("Found 3+" in page.words, f"more than {above} recipients," in page.words) == (True, needs), page.words
    assert "recipients, so" not in (await look(owner, tags="all, odd", match="all")).words


async def test_an_outgrown_approval_is_asked_for_again(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await people(pool, tenant, 2)
    await pool.execute("UPDATE organizations SET approval_above = 1 WHERE id = $1", tenant.id)
    later = datetime.now(UTC) + timedelta(days=2)
    made = await make(owner, when="later", day=f"{later:%Y-%m-%d}", hour="12:00")
    assert made.words.count("12:00 (UTC)") == 2
    assert "It has not begun: nobody gets it." in (await owner.get(made.path + "/cancel")).words
    await make_person(pool, tenant, "rui@example.com", "sender")
    await other_browser.sign_in("rui@example.com")
    page = await other_browser.get(made.path)
    assert "Your approval holds for up to twice as many recipients" in page.words
    page = await other_browser.submit(page, f"{made.path}/approve")
    assert "for at most 4 recipients" in page.words, page.words
    async with pool.acquire() as conn:
        entries = [Entry(f"+25884{2_000_000 + n}", f"Q{n}", tags=("all",)) for n in range(3)]
        await records.create_many(conn, tenant.actor, entries=entries)
    said = "It was approved for at most 4 recipients and may have more: then it begins once a second person"
    assert said in (await other_browser.get(made.path)).words
    await pool.execute("UPDATE campaigns SET step_at = now()")
    await stage(pool)
    page = await other_browser.get(made.path)
    assert "It was approved for at most 4 recipients and has more, so a second person" in page.words, page.words
    assert "Continue" not in page.words
    page = await other_browser.submit(page, f"{made.path}/approve")
    assert "It was approved" not in page.words
    await stage(pool)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 5


async def test_a_second_person_approves_a_campaign_to_many(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    page = await owner.get("/settings")
    wrong = await owner.submit(page, "/settings/security", approval_above="many")
    assert (wrong.status, "Enter a number from 0 to 1,000,000" in wrong.words) == (422, True)
    assert wrong.form("/settings/security")["approval_above"] == "many"
    page = await owner.submit(page, "/settings/security", approval_above="1,000")
    assert page.form("/settings/security")["approval_above"] == "1000"
    page = await owner.submit(page, "/settings/security", approval_above="1")
    assert page.form("/settings/security")["approval_above"] == "1"
    await make_person(pool, tenant, "rui@example.com", "sender")
    rui = other_browser
    await rui.sign_in("rui@example.com")
    said = "so a second person has to approve it"
    assert said not in (await look(rui, to="numbers", numbers="+258841234567", text="Hi")).words
    assert said in (await look(rui, to="numbers", numbers="+258841234567\n+258841234568", text="Hi")).words
    assert said not in (await look(rui, to="numbers", numbers="+258841234567\nnobody", text="Hi")).words
    # Skipped recipients count: they are skipped when it is staged, after the approval.
    await pool.execute("INSERT INTO opt_outs VALUES ($1, '+258841234569', now(), 'test')", tenant.id)
    assert said in (await look(rui, to="numbers", numbers="+258841234567\n+258841234569", text="Hi")).words
    made = await make(rui, to="numbers", numbers="+258841234567\n+258841234568", text="Hi")
    await stage(pool)
    own = await rui.get(made.path)
    for said in ("A second person has to approve this campaign", "It has more than 1 recipient,", "You created it"):
        assert said in own.words, (said, own.words)
    assert "Approve the campaign" not in own.words
    refused = await rui.post(f"{made.path}/approve", own.form(f"{made.path}/pace"))
    assert ("The creator of a campaign cannot approve it" in refused.words, refused.is_refusal) == (True, True)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 0
    seen = await owner.get(made.path)
    assert "You created it" not in seen.words
    # Whoever decides knows who asks, and that nobody has been left out of the number yet.
    assert [name in seen.words for name in ("Opt-outs have not been checked yet", "Can be messaged")] == [True, False]
    assert re.search(r"Created [^·]* · Rui\b", seen.words)
    assert "waits for a second person's approval" in (await owner.get("/notices")).words
    home = (await owner.get("/")).words
    assert ("“Sale” waits for a second person's approval." in home, "is stalled" in home) == (True, False)
    done = await owner.submit(seen, f"{made.path}/approve")
    for said in ("The campaign is approved.", "Approved by Ana"):
        assert said in done.words, (said, done.words)
    await stage(pool)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 2
    sent = await owner.get(made.path)
    assert [name in sent.words for name in ("Opt-outs have not been checked yet", "Can be messaged 2")] == [False, True]


async def test_why_an_approval_no_longer_counts_is_said(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await owner.submit(await owner.get("/settings"), "/settings/security", approval_above="1")
    rui = await make_person(pool, tenant, "rui@example.com", "admin")
    await other_browser.sign_in("rui@example.com")
    made = await make(owner, to="numbers", numbers="+258841234567\n+258841234568", text="Hi")
    await stage(pool)
    # Paused by its creator, so that it does not begin with the approval.
    await pool.execute("UPDATE campaigns SET status_reason = $1", plan.BY_REQUEST)
    await other_browser.submit(await other_browser.get(made.path), f"{made.path}/approve")
    for change, said in (
        ("UPDATE memberships SET role = 'viewer' WHERE user_id = $1", "and may no longer approve campaigns"),
        ("DELETE FROM memberships WHERE user_id = $1", "and has left the organization since"),
    ):
        await pool.execute(change, rui.id)
        page = await owner.get(made.path)
        assert re.search(rf"Rui approved it on [^,]+, \d\d:\d\d {said}, so the approval no longer counts\.", page.words)
        assert "<bdi>Rui</bdi> approved it" in page.text, "a name keeps its own direction"
        # What to do now, and who can.
        assert "so a second person has to approve it." in page.words
        assert "You created it, so somebody else who may create campaigns has to approve it" in page.words
        assert "Approved by" not in page.words
