"""The kit's pieces: charts with their table and file, ranges of time, pages of a list, and undoing."""

from __future__ import annotations

import csv
import html
import io
import itertools
import json
import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment

import heliograph
from heliograph import traffic
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, Unavailable
from heliograph.pages import cookies, templates
from heliograph.pages.languages import locale
from heliograph.pages.lists import pagination, ranges
from heliograph.pages.pieces import charts, confirming
from heliograph.pages.pieces.charts import Chart, Mark, Series
from heliograph.pages.requests import Request
from heliograph.pages.serving.rendering import kit

from .conftest import Api, Browser, Tenant
from .test_messages import send

NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)


def asked(query: dict[str, str], *, language: str = "en", zone: str = "UTC", **more: Any) -> Request:
    """A request for a list."""
    made = Request()
    made.query, made.page, made.mode, made.locale = query, "/list", "live", locale(language, zone)
    made.cookies, made.form = more.get("cookies", {}), more.get("form", {})
    return made


def chart(**changes: Any) -> Chart:
    values: dict[str, Any] = {
        "id": "sent",
        "title": "Two were sent.",
        "unit": "messages",
        "kind": "bars",
        "locale": locale("en"),
        "times": [NOON, NOON + timedelta(hours=1)],
        "step": 3600,
        "series": [Series("Sent", "way", [2, 0]), Series("=Failed", "bad", [None, 0])],
        "marks": [Mark(NOON, "</script><b>paused")],
        "links": ["/messages?a", "/messages?b"],
    }
    return Chart(**(values | changes))


def drawn(it: Chart) -> str:
    env: Environment = kit((Path(templates.__file__).with_name("templates"),))[1]
    text = '{% import "kit.html" as kit with context %}{{ kit.chart(it) }}'
    values = {"request": asked({}), "token": "", "once": "", "fields": {}, "theme": "system", "languages": {}}
    return env.from_string(text).render(it=it, locale=it.locale, to=lambda path: path, **values)


def test_a_single_interval_is_named_once() -> None:
    one = chart(times=[NOON], series=[Series("Sent", "way", [2])], links=[], marks=[])
    assert one.range == one.locale.moment(NOON)


def test_each_region_that_renews_itself_has_a_place_for_when_it_did() -> None:
    without = []
    for path in Path(heliograph.__file__).parent.rglob("*.html"):
        text = path.read_text()
        if text.count("data-live") != text.count("{{ kit.renewed() }}"):
            without.append(path.name)
    assert without == []


_cells = re.compile(r'<td\b(?:[^>"]|"[^"]*")*data-name="\{\{.*?\}\}"(?:[^>"]|"[^"]*")*>(.*?)</td>', re.S).findall


def test_a_cell_of_several_parts_holds_them_together() -> None:
    """On a phone, a cell is its column's name and one more item: the parts of several used to be side by side there,
    and broke numbers in two."""
    apart = []
    for path in Path(heliograph.__file__).parent.rglob("*.html"):
        for cell in _cells(path.read_text()):
            parts = re.search(r'class="(sub|tag|line)\b|kit\.share\(|kit\.history\(', cell)
            if parts and not re.match(r"\s*(\{%[^%]*%\}\s*)?<(div|span|form)\b", cell):
                apart.append(f"{path.name}: {cell[:60]}")
    assert apart == []


def test_a_chart_says_in_its_table_what_it_shows() -> None:
    text = drawn(chart())
    block = re.search(r'<script type="application/json" data-figures>(.*?)</script>', text, re.S)
    assert block
    figures = json.loads(block[1])
    assert figures["series"][0]["values"] == [2, 0]
    assert figures["marks"][0]["name"] == "</script><b>paused"
    assert re.findall(r'<th scope="row"><a href="([^"]*)">([^<]*)</a></th><td class="end">([^<]*)', text) == [
        ("/messages?a", "31 Jan 2027, 12:00", "2")
    ]
    assert "Two were sent." in text
    assert 'class="plot bars-2"' in text
    empty = drawn(chart(series=[Series("Sent", "way", [0, None])]))
    assert ("data-plot" in empty, "Nothing happened in this period." in empty) == (False, True)


def test_a_chart_tells_apart_the_hour_that_clocks_show_twice() -> None:
    midnight = datetime(2026, 10, 24, 23, tzinfo=UTC)
    times = [midnight + timedelta(hours=n) for n in range(4)]
    found = chart(locale=locale("en", "Europe/Lisbon"), times=times, series=[Series("Sent", "way", [1] * 4)], links=())
    assert [row[0] for row in found.rows] == [
        "25 Oct 2026, 00:00",
        "25 Oct 2026, 01:00 +01:00",
        "25 Oct 2026, 01:00 +00:00",
        "25 Oct 2026, 02:00",
    ]
    assert found.data["labels"] == [row[0] for row in found.rows]


def test_the_period_of_a_chart_ends_where_its_last_interval_does() -> None:
    begun = datetime(2027, 1, 31, 12, tzinfo=UTC)
    for step, times, said in (
        (3600, [begun, begun + timedelta(hours=1)], "31 Jan 2027, 12:00 – 31 Jan 2027, 14:00"),
        # Days are named as such, and 24 hours that begin at another time are not.
        (charts.DAY, [begun - timedelta(hours=36), begun - timedelta(hours=12)], "30 Jan 2027 – 31 Jan 2027"),
        (charts.DAY, [begun - timedelta(hours=24), begun], "30 Jan 2027, 12:00 – 1 Feb 2027, 12:00"),
    ):
        series = [Series("Sent", "way", [1] * len(times))]
        assert chart(step=step, times=times, series=series, links=()).range == said


def test_the_file_of_a_chart_opens_in_a_spreadsheet_of_the_reader() -> None:
    assert charts.download(asked({}), [chart()]) is None
    assert charts.download(asked({"csv": "other"}), [chart()]) is None
    for language, separator in (("en", ","), ("pt", ";")):
        found = charts.download(asked({"csv": "sent"}, language=language), [chart()])
        assert found
        rows = list(csv.reader(io.StringIO(found.body.decode("utf-8-sig")), delimiter=separator))
        assert rows[0][1:] == ["Sent", "'=Failed"]
        assert rows[1:] == [["2027-01-31T12:00:00.000Z", "2", ""], ["2027-01-31T13:00:00.000Z", "0", "0"]]


@pytest.mark.parametrize(
    ("query", "since", "until"),
    [
        ({"from": "2027-01-31"}, "2027-01-30T22:00:00+00:00", None),
        ({"to": "2027-01-31"}, None, "2027-01-31T22:00:00+00:00"),
        ({"from": "2027-01-31T14:30"}, "2027-01-31T12:30:00+00:00", None),
        ({"from": "2027-01-31T10:00:00Z", "range": "custom"}, "2027-01-31T10:00:00+00:00", None),
    ],
)
def test_times_of_a_range_are_the_readers(query: dict[str, str], since: str | None, until: str | None) -> None:
    found = ranges.read(asked(query, zone="Africa/Maputo"))
    assert found.name == "custom"
    assert (found.since and found.since.isoformat(), found.until and found.until.isoformat()) == (since, until)
    assert found.problems == {}
    again = ranges.read(asked(found.query, zone="Africa/Maputo"))
    assert (again.since, again.until) == (found.since, found.until)


@pytest.mark.parametrize(
    ("query", "since", "until"),
    [
        # Clocks go back from 02:00 to 01:00 on 31 October, at 01:00Z.
        ({"from": "2027-10-31T01:30", "to": "2027-10-31T01:45"}, "00:30", "01:45"),
        ({"from": "2027-10-31T00:30", "to": "2027-10-31T01:00"}, "23:30", "00:00"),
        ({"from": "2027-10-31T01:00", "to": "2027-10-31T02:00"}, "00:00", "02:00"),
        # This used to be read as a range that ends before it begins.
        ({"from": "2027-10-31T00:45:00Z", "to": "2027-10-31T01:15:00Z"}, "00:45", "01:15"),
        # They go forward from 01:00 to 02:00 on 28 March, at 01:00Z.
        ({"from": "2027-03-28T00:30", "to": "2027-03-28T02:00"}, "00:30", "01:00"),
        ({"from": "2027-03-28T01:30", "to": "2027-03-28T03:00"}, "00:30", "02:00"),
    ],
)
def test_a_range_contains_whatever_is_shown_with_a_time_in_it(query: dict[str, str], since: str, until: str) -> None:
    """Of a quarter of the hour that clocks show twice, lists used to contain only what had happened the first time."""
    found = ranges.read(asked(query, zone="Europe/Lisbon"))
    assert found.since is not None
    assert found.until is not None
    assert (f"{found.since:%H:%M}", f"{found.until:%H:%M}") == (since, until)
    again = ranges.read(asked(found.query, zone="Europe/Lisbon"))
    assert again.problems == {}
    assert again.since == found.since
    assert again.until == found.until


def test_a_range_by_name_wins_over_times_and_can_be_made_to_stay() -> None:
    found = ranges.read(asked({"range": "24h", "from": "2027-01-31"}))
    assert (found.name, found.until) == ("24h", None)
    fixed = ranges.read(asked(found.fixed))
    assert (fixed.name, fixed.since) == ("custom", found.since)
    assert ranges.read(asked({})).name == ""
    assert ranges.read(asked({"range": "9h"}), usual="7d").name == "7d"


@pytest.mark.parametrize("text", ["tomorrow", "0001-01-01", "9999-12-31T23:59+00:00", "2027-02-30", "2027-01-31T25:00"])
def test_a_time_that_is_none_is_said_and_the_rest_stands(text: str) -> None:
    found = ranges.read(asked({"from": text, "to": "2027-01-31"}))
    assert (found.since, set(found.problems), found.typed_since) == (None, {"from"}, text)
    assert found.until is not None


def test_an_end_before_the_beginning_is_said() -> None:
    found = ranges.read(asked({"from": "2027-01-31", "to": "2027-01-30"}))
    assert (found.until, set(found.problems)) == (None, {"to"})


def test_newer_leads_back_page_by_page() -> None:
    ids = [uuid.uuid4() for _ in range(pagination.MOST_BACK + 5)]
    at, seen = {"status": "failed"}, []
    for last in ids:
        request = asked(at)
        seen.append(pagination.after(request))
        older = pagination.pages(request, last).older
        assert older
        at = query_of(older)
    assert seen == [None, *ids[:-1]]
    request = asked(at)
    assert pagination.pages(request, None).older is None
    for last in reversed(ids[-pagination.MOST_BACK : -1]):
        newer = pagination.pages(request, None).newer
        assert newer
        request = asked(query_of(newer))
        assert pagination.after(request) == last
        assert request.query["status"] == "failed"
    assert pagination.pages(asked({}), None).newer is None
    assert pagination.after(asked({"after": "no.id"})) is None


def query_of(address: str) -> dict[str, str]:
    return dict(one.split("=") for one in address.partition("?")[2].split("&"))


def test_rows_of_a_page_are_those_chosen_last() -> None:
    assert pagination.size(asked({})) == pagination.USUAL
    assert pagination.size(asked({}, cookies={cookies.ROWS: "100"})) == 100
    assert pagination.size(asked({"limit": "25"}, cookies={cookies.ROWS: "100"})) == 25
    assert pagination.size(asked({"limit": "1000000"})) == pagination.USUAL


def test_what_has_to_be_typed_is_typed() -> None:
    confirming.check(asked({}, form={"typed": " web  Shop"}), "Web shop")
    with pytest.raises(Invalid):
        confirming.check(asked({}, form={}), "Web shop")


def test_a_notice_can_carry_where_it_is_undone() -> None:
    said = cookies.notice("The contact is deleted.", "/contacts/1/restore", is_secure=False)
    value = said.partition("=")[2].partition(";")[0]
    assert cookies.read_notice(value) == ("The contact is deleted.", "/contacts/1/restore")
    assert cookies.read_notice("!") == ("", "")


@pytest.mark.parametrize("said", ["Restam 50\u00a0000.", "“می‌خواهم” is removed.", "“👩‍💻” is removed.", "“\U0001fae8”"])
def test_a_notice_has_numbers_and_names_of_all_languages(said: str) -> None:
    value = cookies.notice(said, "/routes/1/undo", is_secure=False).partition("=")[2].partition(";")[0]
    assert cookies.read_notice(value) == (said, "/routes/1/undo")


async def test_undo_stands_beside_what_was_done_and_leads_nowhere_else(owner: Browser) -> None:
    for undo, is_there in (("/contacts/1/restore", True), ("//elsewhere.example/x", False), ("", False)):
        value = cookies.notice("Done.", undo, is_secure=False).partition("=")[2].partition(";")[0]
        owner.session.cookie_jar.update_cookies({cookies.NOTICE: value})
        page = await owner.get("/account")
        assert "Done." in page.words
        assert ("Undo" in page.words, f'action="{undo}"' in page.text and bool(undo)) == (is_there, is_there)


async def test_a_notice_that_another_host_set_is_not_shown(browser: Browser) -> None:
    """Otherwise its button could write in the reader's name: over https only this very host can set a cookie of that
    name."""
    value = cookies.notice("Done.", "/keys/1/revoke", is_secure=True).partition("=")[2].partition(";")[0]
    for name, is_shown in ((cookies.NOTICE, False), (cookies.SECURE_NOTICE, True)):
        page = await browser.get("/login", Host="heliograph.example", Cookie=f"{name}={value}")
        assert ("Done." in page.words) is is_shown
    assert cookies.notice("Done.", is_secure=True).startswith("__Host-hg-notice=")


async def test_rows_are_remembered(owner: Browser) -> None:
    page = await owner.get("/account")
    fields = {"_token": page.form("/logout")["_token"], "rows": "25", "next": "/account"}
    assert (await owner.post("/preferences", fields)).status == 200
    kept = {one.key: one.value for one in owner.session.cookie_jar}
    assert kept[cookies.ROWS] == "25"


async def test_charts_of_home_lead_to_the_messages_they_are_made_of(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    await send(api, tenant)
    async with pool.acquire() as conn:
        while await traffic.fold(conn):
            pass
    page = await owner.get("/?range=7d")
    assert "1 accepted, 0 delivered, 0 failed." in page.words
    links = re.findall(r'<th scope="row"><a href="(/messages\?from=[^"]*)"', page.text)
    assert len(links) == 1
    hour = clock.now().replace(minute=0, second=0, microsecond=0)
    file = await owner.get("/?range=7d&csv=messages")
    assert file.headers["content-disposition"] == 'attachment; filename="messages.csv"'
    rows = list(csv.reader(io.StringIO(file.text.lstrip("\ufeff"))))
    assert rows[0] == ["Time", "Accepted", "Delivered", "Failed"]
    assert len(rows) in (169, 170)
    assert next(row for row in rows[1:] if row[1] != "0")[0][:13] in (
        f"{hour:%Y-%m-%dT%H}",
        f"{hour - timedelta(hours=1):%Y-%m-%dT%H}",
    )
    listed = await owner.get(html.unescape(links[0]))
    assert len(re.findall(r'<tr id="m-', listed.text)) == 1
    assert len(re.findall(r'<tr id="m-', (await owner.get("/messages?to=2021-01-01")).text)) == 0
    # Possible causes of a drop are marked, and listed beside the table for those who do not see the chart.
    body = {"name": "Spring sale", "content": "Hello", "recipients": ["+258841234567"]}
    status, _, begun = await api.ask("POST", "/campaigns", json=body, headers=tenant.headers)
    assert status < 300, begun
    await pool.execute("UPDATE campaigns SET status = 'running', started_at = now() - interval '1 minute'")
    where = f"/campaigns/{begun['campaign']['id']}"
    for act in ("pause", "resume"):
        await owner.submit(await owner.get(where), f"{where}/{act}")
    page = await owner.get("/?range=7d")
    (block, *_) = re.findall('<script type="application/json" data-figures>(.*?)</script>', page.text, re.S)
    assert [one["name"] for one in json.loads(block)["marks"]] == [
        "Spring sale",
        "Spring sale: a pause",
        "Spring sale: in progress",
    ]
    assert re.search(r": <bdi>Spring sale: a pause</bdi></li>", page.text)
    assert "Spring sale" not in (await owner.get("/?range=7d&mode=test")).words
    long = await owner.get("/?from=2020-01-01")
    assert "1 accepted" in long.words
    assert "Nothing happened in this period." in (await owner.get("/?from=2021-01-01&to=2021-01-02")).words


def test_a_range_has_neighbours_and_times_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ranges.read(asked({"from": "2027-01-31", "to": "2027-01-31"}))
    later = {"from": "2027-02-01T00:00:00.000Z", "to": "2027-02-02T00:00:00.000Z"}
    assert made.fixed == {"from": "2027-01-31T00:00:00.000Z", "to": "2027-02-01T00:00:00.000Z"}
    assert made.earlier == {"from": "2027-01-30T00:00:00.000Z", "to": "2027-01-31T00:00:00.000Z"}
    assert made.later == (later if clock.now() > datetime(2027, 2, 1, tzinfo=UTC) else {})
    assert ranges.read(asked(made.earlier)).fixed == made.earlier
    past = ranges.read(asked({"from": "2020-01-30", "to": "2020-01-30"}))
    assert past.later == {"from": "2020-01-31T00:00:00.000Z", "to": "2020-02-01T00:00:00.000Z"}
    # A relative range ends now: there is nothing after it. One that is open on a side has no length.
    ticks = itertools.count()
    monkeypatch.setattr(clock, "now", lambda: datetime(2026, 3, 1, tzinfo=UTC) + timedelta(milliseconds=next(ticks)))
    relative = ranges.read(asked({"range": "1h"}))
    assert (set(relative.earlier), relative.later) == ({"from", "to"}, {})
    monkeypatch.undo()
    for query in ({}, {"from": "2026-01-30"}, {"to": "2026-01-30"}):
        assert ranges.read(asked(query)).fixed == {}, query
    oldest = ranges.read(asked({"from": "2000-01-01", "to": "2999-12-31"}))
    assert oldest.earlier == {}
    assert ranges.read(asked(past.later)).problems == {}


async def test_a_page_without_its_database_tries_again_by_itself(
    owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = (await owner.get("/messages")).form("/messages/export")

    async def away(*_: object, **__: object) -> None:
        raise Unavailable

    monkeypatch.setattr("heliograph.overview.messages.list_page", away)
    monkeypatch.setattr("heliograph.overview.exports.jobs.ask", away)
    page = await owner.get("/messages")
    assert (page.status, "data-until" in page.text, "data-retry" in page.text) == (503, True, False)
    assert "Nothing that was accepted is lost." in page.words
    page = await owner.post("/messages/export", form)
    assert (page.status, "data-until" in page.text) == (503, False)
    assert "What you typed is still there when you go back" in page.words


async def test_a_name_of_10_kb_is_refused_at_its_field_and_nothing_typed_is_lost(owner: Browser) -> None:
    """Journey 15, for values that are too long to be shown anywhere."""
    long, wrong = "ñ" * 5_120, []
    for path, action, field in (
        ("/contacts/new", "/contacts", "name"),
        ("/keys/new", "/keys", "name"),
        ("/texts/new", "/texts", "name"),
        ("/senders/new", "/senders", "value"),
        ("/settings", "/settings/general", "name"),
        ("/account", "/account", "name"),
        ("/team/invite", "/team/invite", "email"),
    ):
        page = await owner.submit(await owner.get(path), action, **{field: long})
        if (page.status, f'href="#{field}"' in page.text, long in page.text) != (422, True, True):
            wrong.append((path, page.status, page.words[:2_000]))
    assert wrong == []
    for path in ("/messages?q", "/contacts?q", "/audit?who", "/requests?q", "/templates?name"):
        assert (await owner.get(f"{path}={'n' * 5_120}")).status < 500, path


def test_what_a_text_has_between_backticks_is_shown_as_code() -> None:
    assert templates.commands("Run `heliograph migrate`, & wait.") == "Run <code>heliograph migrate</code>, &amp; wait."
    # No line ends within an option, such as behind one of its hyphens.
    told = '<code>heliograph user link a-b <span class="nowrap">--operator</span></code>'
    assert templates.commands("`heliograph user link a-b --operator`") == told
    assert templates.commands("`<b>` and `c`") == "<code>&lt;b&gt;</code> and <code>c</code>"
    assert templates.commands("One ` alone & <i>") == "One ` alone &amp; &lt;i&gt;"
