"""Suppliers: every option changed after its difference is shown, passwords replaced, and the actions for one."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.histogram import LENGTH
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check
from heliograph.base.sentences import said as sentence
from heliograph.health import findings
from heliograph.http import answers as http
from heliograph.pages.templates import commands
from heliograph.sms import checks
from heliograph.sms.circuits import sharing
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.management import forms, sections
from heliograph.sms.reports.words import Words, answer_codes
from heliograph.sms.watched import history, pdus
from heliograph.sms.watched.last_receipts import LastReceipts
from heliograph.suppliers import kinds
from heliograph.suppliers.contract import Outcome, Verdict, WireActivity
from heliograph.suppliers.http.kind import Message, Request
from heliograph.suppliers.http.watching import ExchangeRecorder as HttpTap
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.watching import PduRecorder
from heliograph.traffic import reconciliation
from tests.api.conftest import Tenant
from tests.rules.factories import SUM_DAYS

from .conftest import Browser, yesterday

#: A chart's series, as the script reads it.
TONE = re.compile(r'"tone":\s*"(\w+)"')
SMPP = {"host": "127.0.0.1", "port": 2775, "system_id": "esme", "tls": False}


async def add(pool: Pool, under: Settings, name: str = "main", **more: Any) -> UUID:
    async with pool.acquire() as conn:
        return await suppliers.add(
            conn,
            suppliers.seal_key(under),
            **{"name": name, "kind": "smpp", "settings": SMPP, "secret": "xyzzy-plugh"} | more,
        )


async def row(pool: Pool, id: UUID) -> routing.Supplier:
    async with pool.acquire() as conn:
        return next(one for one in await routing.load(conn) if one.id == id)


async def audit_entries(pool: Pool, id: UUID) -> list[tuple[str, str, str]]:
    found = await pool.fetch("SELECT action, who, after FROM audit_log WHERE object_id = $1 ORDER BY id", str(id))
    return [(one["action"], one["who"], one["after"]) for one in found]


async def test_the_difference_is_shown_before_it_is_saved(pool: Pool, root: Browser, settings: Settings) -> None:
    id = await add(pool, settings)
    path = f"/console/suppliers/{id}/edit"
    page = await root.get(path)
    assert "xyzzy-plugh" not in page.text
    typed = {"option.window": "25", "option.final_states": "ACCEPTD=delivered\r\nLOST=failed", "weight": "3"}
    page = await root.submit(page, path, **typed)
    assert "3 settings change" in page.words
    assert (await row(pool, id)).settings == SMPP, "nothing is saved yet"
    page = await root.submit(page, path, do="save")
    assert "Saved: workers apply it" in page.words
    after = await row(pool, id)
    assert after.settings == SMPP | {"window": 25, "final_states": {"ACCEPTD": "delivered", "LOST": "failed"}}
    assert (after.weight, after.priority) == (3, 10)
    assert (await audit_entries(pool, id))[-1][:2] == ("supplier.changed", "operator")
    assert "Supplier changed" in page.words
    # In words, not as it is stored.
    assert "Weight: 1 → 3" in page.words
    assert '{"weight' not in page.words
    # An emptied field is reset to its default.
    page = await root.submit(await root.get(path), path, **{"option.window": "", "option.final_states": ""})
    page = await root.submit(page, path, do="save")
    assert (await row(pool, id)).settings == SMPP
    page = await root.submit(await root.get(path), path)
    assert "Nothing was changed" in page.words


async def test_what_a_change_of_its_place_moves_is_told_before_it_is_saved(
    pool: Pool, tenant: Tenant, root: Browser, settings: Settings
) -> None:
    id = await add(pool, settings)
    await add(pool, settings, "other")
    await yesterday(pool, tenant, "MZ", 100)
    path = f"/console/suppliers/{id}/edit"
    form = await root.get(path)
    page = await root.submit(form, path, weight="3")
    assert "It moves 25 % of yesterday's 100 messages." in page.words.replace("\xa0", " ")
    assert "25 from other to main" in page.words
    page = await root.submit(form, path, priority="11")
    assert "50 from main to other" in page.words
    assert (await row(pool, id)).priority == 10, "nothing is saved yet"
    assert [one[0] for one in await audit_entries(pool, id)] == ["supplier.added"]
    page = await root.submit(page, path, do="save")
    assert (await row(pool, id)).priority == 11
    page = await root.submit(await root.get(path), path, **{"option.window": "25"})
    assert ("1 setting changes" in page.words, "What it moves" in page.words) == (True, False)


GROUPS = ("connection", "limits", "times", "protocol")


@pytest.mark.parametrize("kind", [kinds.SMPP, *kinds.HTTP])
def test_every_setting_has_a_section_and_the_few_that_are_needed_are_open(kind: str) -> None:
    found = sections.sections(kind, {}, GROUPS)
    listed = [one.name for section in found for one in section.fields]
    assert sorted(listed) == sorted(one.name for one in forms.fields(kind))
    shown = {one.name for section in found if section.is_open for one in section.fields}
    assert {one.name for one in forms.fields(kind) if one.is_required} <= shown
    assert len(shown) <= 20, shown
    # Nothing that is in effect is hidden.
    for section in found:
        for one in section.fields:
            typed = {forms.OPTION + one.name: "something"}
            again = sections.sections(kind, typed, (one.group,))
            assert all(each.is_open for each in again if one in each.fields), one.name


async def test_a_section_with_what_was_refused_is_open(pool: Pool, root: Browser, settings: Settings) -> None:
    id = await add(
        pool, settings, kind="http", settings={"base_url": "http://127.0.0.1"}, secret='{"secret":"xyzzy-plugh"}'
    )
    path = f"/console/suppliers/{id}/edit"
    folded = re.compile(r'<details class="card section"><summary>(.*?) <')
    page = await root.get(path)
    assert {"Messages from handsets", "Callbacks", "Time limits"} <= set(folded.findall(page.text))
    assert not {"Connection", "The request", "Its answer", "Receipts"} & set(folded.findall(page.text))
    wrong = await root.submit(page, path, **{"option.callback_networks": "nonsense"})
    assert (wrong.status, "Callbacks" in folded.findall(wrong.text)) == (422, False), wrong.words


async def test_a_refused_change_names_its_fields_and_keeps_what_was_typed(
    pool: Pool, root: Browser, settings: Settings
) -> None:
    id = await add(pool, settings)
    await add(pool, settings, "other")
    path = f"/console/suppliers/{id}/edit"
    form = await root.get(path)
    for typed, field in (
        ({"option.window": "many"}, "option.window"),
        ({"option.window": "0"}, "option.window"),
        ({"option.host": ""}, "option.host"),
        ({"option.final_states": "nonsense"}, "option.final_states"),
        ({"priority": "1001"}, "priority"),
        ({"prefixes": "MZ"}, "prefixes"),
        ({"name": ""}, "name"),
    ):
        wrong = await root.submit(form, path, **typed)
        assert wrong.status == 422, typed
        assert f'href="#{field}"' in wrong.text, typed
    page = await root.submit(form, path, name="Other")
    wrong = await root.submit(page, path, do="save")
    assert wrong.status == 422
    assert "already a supplier with this name" in wrong.words
    # Somebody else was quicker.
    page = await root.submit(form, path, **{"option.window": "30"})
    async with pool.acquire() as conn:
        await suppliers.set_state(conn, supplier=str(id), state="paused")
    wrong = await root.submit(page, path, do="save")
    assert wrong.status == 422
    assert "changed this supplier in the meantime" in wrong.words
    assert 'value="30"' in wrong.text


@pytest.mark.parametrize("kind", kinds.SETTINGS)
async def test_every_option_of_every_kind_has_a_field(pool: Pool, root: Browser, settings: Settings, kind: str) -> None:
    id = await add(pool, settings, kind=kind, settings={})
    page = await root.get(f"/console/suppliers/{id}/edit")
    assert page.status == 200
    for name in kinds.SETTINGS[kind].__struct_fields__:
        assert f'name="{forms.OPTION}{name}"' in page.text, name
    assert (await root.get(f"/console/suppliers/{id}")).status == 200
    assert (await root.get(f"/console/suppliers/{id}/password")).status == 200


async def test_a_password_is_replaced_and_never_shown(pool: Pool, root: Browser, settings: Settings) -> None:
    id = await add(pool, settings)
    path = f"/console/suppliers/{id}/password"
    form = await root.get(path)
    assert (await root.submit(form, path, secret="")).status == 422
    page = await root.submit(form, path, secret="correct horse")
    assert "Replaced" in page.words
    assert "correct horse" not in page.text
    assert suppliers.open_secret(suppliers.seal_key(settings), await row(pool, id)) == "correct horse"
    assert "correct horse" not in str(await audit_entries(pool, id))


async def test_a_supplier_is_paused_drained_resumed_and_removed(pool: Pool, root: Browser, settings: Settings) -> None:
    id = await add(pool, settings)
    page = await root.get("/console/suppliers")
    assert "main" in page.words
    assert "not connected" in page.words
    path = f"/console/suppliers/{id}"
    page = await root.submit(await root.get(f"{path}/pause"), f"{path}/drain")
    assert "It is draining" in page.words
    page = await root.submit(await root.get(f"{path}/pause"), f"{path}/pause")
    assert "It is paused" in page.words
    page = await root.submit(page, f"{path}/resume")
    assert "It carries messages again" in page.words
    states = [after for action, _, after in await audit_entries(pool, id) if action == "supplier.state_changed"]
    assert states == ['{"state":"draining"}', '{"state":"paused"}', '{"state":"active"}']
    form = await root.get(f"{path}/remove")
    assert (await root.submit(form, f"{path}/remove", typed="something")).status == 422
    page = await root.submit(form, f"{path}/remove", typed="main")
    assert "main is removed" in page.words
    assert (await root.get(path)).status == 404
    async with pool.acquire() as conn:
        assert await routing.load(conn) == []


async def test_its_page_says_what_is_found_of_it_and_what_to_do(pool: Pool, root: Browser, settings: Settings) -> None:
    id = await add(pool, settings)
    await add(pool, settings, "other")
    page = await root.get(f"/console/suppliers/{id}")
    assert page.words.count("no session bound") == 1
    assert "What to do: Start a worker if none is running" in page.words
    region = await root.get(f"/console/suppliers/{id}", hx_request="true")
    assert "What to do: Start a worker if none is running" in region.words


TRAFFIC = """
INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count, segments,
                     to_sent, to_delivered)
SELECT $1, date_trunc('day', now(), 'UTC') + noon, 'sms', 'live', 'MZ', 'ACME', $2, 'delivered', 900, 900, '{}', '{}'
  FROM (VALUES (interval '-12 hours'), ('12 hours')) day (noon)  -- today's too, as the day may end meanwhile
"""


async def test_a_pause_says_what_goes_where_instead(pool: Pool, root: Browser, settings: Settings, tenant: Any) -> None:
    id = await add(pool, settings)
    path = f"/console/suppliers/{id}/pause"
    assert "Nothing was sent yesterday" in (await root.get(path)).words
    await pool.execute(TRAFFIC, tenant.id, id)
    await pool.execute(SUM_DAYS)
    said = "Of yesterday's 900 messages, 900 were offered to it first. They would go: 900 by nobody"
    assert said in (await root.get(path)).words
    await add(pool, settings, "backup", priority=20)
    assert "900 by backup" in (await root.get(path)).words
    # A simulator takes over nothing while there is another supplier, paused or not; once that is removed, it does.
    await add(pool, settings, "toy", priority=15, simulated=True)
    assert "900 by backup" in (await root.get(path)).words
    async with pool.acquire() as conn:
        await suppliers.set_state(conn, supplier="backup", state="removed")
    assert "900 by nobody" in (await root.get(path)).words
    assert "900 by toy" in (await root.get(f"/console/suppliers/{id}/remove")).words
    await pool.execute("UPDATE traffic_days SET count = 1")
    said = "Yesterday's message was offered to it first. It would go: 1 by toy"
    assert said in (await root.get(f"/console/suppliers/{id}/remove")).words


async def test_a_simulator_is_never_mistaken_for_a_supplier(pool: Pool, root: Browser, settings: Settings) -> None:
    id = await add(pool, settings, "toy", simulated=True)
    for path in ("/console/now", "/console/suppliers", f"/console/suppliers/{id}"):
        page = await root.get(path)
        assert "Live messages go to a simulator" in page.words, path
        assert "tag simulated" in page.text, path
    # Its accepted and reported messages have different colours in its charts.
    real = await add(pool, settings, "real")
    async with pool.acquire() as conn:
        at = await conn.fetchval("SELECT now()")
        told_by = [(one, "MZ", what, 5) for one in (id, real) for what in ("accepted", "delivered", "failed")]
        await reconciliation.count(conn, told_by, at)
    for one, colours in ((id, {"way", "bad", "warn", "calm"}), (real, {"good", "bad", "warn", "calm"})):
        page = await root.get(f"/console/suppliers/{one}")
        assert set(TONE.findall(page.text.partition("time-to-receipt")[0])) == colours, one
    for path in ("/console/now", "/console/suppliers", f"/console/suppliers/{id}"):
        page = await root.get(path)
        assert "Live messages go to a simulator" not in page.words, path
        assert "tag simulated" in page.text, path


async def test_how_it_goes_is_told_from_what_is_kept(pool: Pool, root: Browser, settings: Settings) -> None:
    id, other = await add(pool, settings), await add(pool, settings, "other")
    async with pool.acquire() as conn:
        at = await conn.fetchval("SELECT now()")
        counted = [
            (id, "MZ", what, n) for what, n in (("accepted", 80), ("busy", 20), ("delivered", 60), ("failed", 20))
        ]
        await reconciliation.count(conn, [*counted, (other, "MZ", "accepted", 100)], at)
        worker, gone = UUID(int=7), UUID(int=8)
        await conn.execute(
            "INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, 'w1', now(), now())", worker
        )
        await conn.execute(
            "INSERT INTO supplier_sessions (supplier_id, slot, worker_id, lease_until, bound, bound_at, in_flight)"
            " VALUES ($1, 0, $2, now() + interval '1 minute', true, now(), 5)",
            id,
            worker,
        )
        await conn.execute(sharing.OPEN, gone, [id], [0.0])
        seen = Words()
        for code, verdict in (
            ("0x00000058", Verdict.BUSY),
            ("0x0000000B", Verdict.REFUSED),
            ("0x00000058", Verdict.BUSY),
        ):
            seen.answer(id, Outcome(verdict, code=code))
        seen.answer(id, Outcome(Verdict.UNKNOWN))  # without a code
        await seen.store(conn)
        assert [
            (one.code, one.verdict, one.kind, one.count) for one in await answer_codes(conn, await row(pool, id))
        ] == [
            ("0x00000058", "busy", "T", 2),
            ("0x0000000B", "refused", "F", 1),
        ]
    page = await root.get(f"/console/suppliers/{id}")
    assert "0x00000058 “later” T 2" in page.words
    for said in ("50.0 %", "20.0 %", "75.0 %", "w1", "avoided since", "100 submits, 80 of them accepted."):
        assert said in page.words, said
    file = await root.get(f"/console/suppliers/{id}?csv=submits")
    assert "80,0,20,0" in file.text
    page = await root.submit(page, f"/console/suppliers/{id}/reset-circuit")
    assert "try it again within a second" in page.words
    assert "avoided since" not in page.words
    async with pool.acquire() as conn:
        assert await sharing.avoided(conn) == {}


async def test_charts_have_marks_for_what_a_dip_may_come_from(pool: Pool, root: Browser, settings: Settings) -> None:
    id, other = await add(pool, settings), await add(pool, settings, "other")
    worker, lost = UUID(int=8), sentence("supplier %(name)s", name="main")
    async with pool.acquire() as conn:
        at = await conn.fetchval("SELECT now()")
        await reconciliation.count(conn, [(id, "MZ", "accepted", 80)], at)
        for one, since in ((id, 1800.0), (other, 900.0)):
            ((_, opened),) = await conn.fetch(sharing.OPEN, worker, [one], [since])
            if one == id:
                await conn.execute(sharing.CLOSE, worker, [id], [opened])
        await findings.keep(conn, [Check(lost, "failed", sentence("no session bound"), sentence("Start a worker."))])
        await findings.keep(conn, [])
        for state in ("paused", "active"):
            await suppliers.set_state(conn, supplier="main", state=state)
    page = await root.get(f"/console/suppliers/{id}")
    marked = page.text.partition("Marked on the chart")[2].partition("</ul>")[0]
    told = re.findall(r"<bdi>([^<]*)</bdi>", marked)
    assert sorted(told) == sorted(
        ["circuit open", "circuit closed", "no session", "connected again", "paused by an operator",
         "resumed by an operator"]
    )  # fmt: skip
    assert told[0] == "circuit open", "they stand in order of time"
    # An older range has none of them, and the other supplier its own.
    early = await root.get(f"/console/suppliers/{id}?range=custom&from=2026-01-01T00:00&to=2026-01-02T00:00")
    assert "circuit open" not in early.words
    async with pool.acquire() as conn:
        found = await history.between(conn, id=other, name="other", since=at - timedelta(hours=2), until=at)
        assert [one.kind for one in found] == ["opened"]


async def test_the_list_says_what_is_found_of_each_and_what_to_do(
    pool: Pool, root: Browser, settings: Settings
) -> None:
    id = await add(pool, settings, settings=SMPP | {"submits_per_second": 40})
    lost = await add(pool, settings, "lost")
    heard = LastReceipts()
    heard.note(id)
    heard.note(UUID(int=1))  # the account of test keys
    async with pool.acquire() as conn:
        await conn.execute(
            "INSERT INTO supplier_sessions (supplier_id, slot, worker_id, lease_until, bound, bound_at, in_flight,"
            " rate) VALUES ($1, 0, $1, now() + interval '1 minute', true, now(), 4, 30)",
            id,
        )
        await heard.store(conn)
        await conn.execute("UPDATE supplier_health SET receipt_at = now() - interval '5 minutes'")
        # Late additions change nothing, and without news nothing is stored.
        await heard.store(conn)
        looked = await checks.run(conn, settings)
    wrong = [one for one in looked if one.check == "supplier lost"]
    assert [one.state for one in wrong] == ["failed"]
    page = await root.get("/console/suppliers")
    rows = {
        name: row for row in page.text.split("<tr>") for name in ("main", "lost") if f">{name}</bdi></strong>" in row
    }
    assert wrong[0].detail in rows["lost"]
    assert f"What to do:</strong> {commands(wrong[0].remedy)}" in rows["lost"]
    # On a phone a cell's label is beside one block, not beside columns one letter wide.
    assert re.search(r'data-name="State"><div>.*' + re.escape(wrong[0].detail) + r".*</div></td>", rows["lost"], re.S)
    assert "What to do" not in rows["main"]
    assert ">window 40 % full<" in rows["main"], rows["main"]
    assert '30 of 40 a second<span class="sub">75&nbsp;%<' in rows["main"]
    assert "0.0 a second" in rows["lost"]
    assert "5 min" in rows["main"]
    assert "5 min" not in rows["lost"]
    assert "Last receipt" in (await root.get(f"/console/suppliers/{lost}")).words
    assert await pool.fetchval("SELECT count(*) FROM supplier_health") == 1


async def test_its_window_and_its_answers_are_drawn(pool: Pool, root: Browser, settings: Settings) -> None:
    id = await add(pool, settings)
    answers = [0] * LENGTH
    answers[9] = 10  # from 512 to 1024 ms
    for _ in range(2):
        await pool.execute(
            "INSERT INTO supplier_hours VALUES ($1, date_trunc('hour', now(), 'UTC'), 30, 120, $2)"
            " ON CONFLICT DO NOTHING",
            id,
            answers,
        )
    page = await root.get(f"/console/suppliers/{id}")
    assert "How much of its window was in use." in page.words
    assert "How long answers took." in page.words
    for chart, said in (("window", ",25"), ("time-to-answer", ",0.768,")):
        assert said in (await root.get(f"/console/suppliers/{id}?csv={chart}")).text, chart


async def hold_two_sessions(pool: Pool, id: UUID, wire: Callable[[datetime], WireActivity]) -> None:
    """Two sessions of a worker, one of them bound and seen."""
    seen = wire(await pool.fetchval("SELECT now()"))
    await pool.execute(
        "INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, 'w1', now(), now())", UUID(int=7)
    )
    await pool.execute(
        "INSERT INTO supplier_sessions (supplier_id, slot, worker_id, lease_until, bound, bound_at, detail, wire)"
        " SELECT $1, slot, $2, now() + interval '1 minute', slot = 0, CASE slot WHEN 0 THEN now() END,"
        "        '\"no answer in time\"', CASE slot WHEN 0 THEN $3 ELSE '' END FROM generate_series(0, 1) AS slot",
        id,
        UUID(int=7),
        msgspec.json.encode(seen).decode(),
    )


async def test_each_session_is_listed_with_its_last_pdus(pool: Pool, root: Browser, settings: Settings) -> None:
    id = await add(pool, settings, sessions=2)
    await hold_two_sessions(pool, id, lambda at: WireActivity(3, "submit_sm", at, "enquire_link", at))
    page = await root.get(f"/console/suppliers/{id}")
    table = page.text.partition("Last PDU received</th>")[2].partition("</table>")[0]
    first, second = table.split("<tr>")[1:]
    for said in ("w1", "submit_sm", "enquire_link", ">3<"):
        assert said in first, said
    assert "not connected" not in first
    for said in ("w1", "not connected", "no answer in time", ">–<"):
        assert said in second, said


@pytest.mark.parametrize(
    ("kind", "bound", "until", "says"),
    [
        ("smpp", True, "1 minute", False),  # how the previous session ended
        ("smpp", False, "1 minute", True),
        ("smpp", False, "-1 second", False),  # reported by a worker that is gone
        ("twilio", True, "1 minute", True),  # it has no session to lose: this is the outcome of its last message
    ],
)
async def test_an_error_is_told_while_it_holds(
    pool: Pool, root: Browser, settings: Settings, kind: str, bound: bool, until: str, says: bool
) -> None:
    of_kind = SMPP if kind == "smpp" else {}
    id = await add(pool, settings, kind=kind, settings=of_kind)
    await pool.execute(
        "INSERT INTO supplier_sessions (supplier_id, slot, worker_id, lease_until, bound, bound_at, detail)"
        " VALUES ($1, 0, $2, now() + $3::text::interval, $4, CASE WHEN $4 THEN now() END, '\"no answer to bind\"')",
        id,
        UUID(int=7),
        until,
        bound,
    )
    async with pool.acquire() as conn:
        (check,) = [one for one in await checks.run(conn, settings) if one.check == "supplier main"]
    assert ("no answer to bind" in check.detail) is (says and not bound)
    for path in ("/console/suppliers", f"/console/suppliers/{id}", "/console/now"):
        assert ("no answer to bind" in (await root.get(path)).text) is says, path


async def test_an_account_over_http_has_its_last_request_and_answer(
    pool: Pool, root: Browser, settings: Settings
) -> None:
    web = await add(pool, settings, "web", kind="twilio", settings={}, sessions=2)
    await hold_two_sessions(pool, web, lambda at: WireActivity(3, "POST", at, "429", at))
    page = await root.get(f"/console/suppliers/{web}")
    assert "Last PDU" not in page.words
    table = page.text.partition("Last answer</th>")[2].partition("</table>")[0]
    first, second = table.split("<tr>")[1:]
    for said in ("w1", "POST", "429", ">3<"):
        assert said in first, said
    assert "429" not in second
    # Without our public address it reports nothing, and every message ends as unknown after days.
    assert "Callback address ? HELIOGRAPH_PUBLIC_URL is not set" in page.words
    assert "Último pedido" in (await root.get(f"/console/suppliers/{web}", accept_language="pt")).words


async def test_its_pdus_are_watched_for_minutes_and_shown_masked(pool: Pool, root: Browser, settings: Settings) -> None:
    id = await add(pool, settings)
    page = await root.get(f"/console/suppliers/{id}")
    assert "Last PDUs" not in page.words
    page = await root.submit(page, f"/console/suppliers/{id}/watch")
    assert "Nothing has been sent or received yet." in page.words
    assert 'data-live="1000"' in page.text
    assert (await audit_entries(pool, id))[-1] == ("supplier.watched", "operator", '{"seconds":120}')
    tap = PduRecorder()
    tap(p.SubmitSm(41, source_addr="ACME", destination_addr="258841234567", short_message=b"Hello"), True)
    tap(p.SubmitSmResp(41, 0x58, "188b2c"), False)
    async with pool.acquire() as conn:
        await pdus.keep(conn, [(id, one) for one in tap.take()])
    page = await root.get(f"/console/suppliers/{id}")
    assert "submit_sm_resp 41 0x00000058 ESME_RTHROTTLED message_id=188b2c" in page.words
    assert "destination_addr=…4567" in page.words
    assert "258841234567" not in page.text
    assert page.words.index("188b2c") < page.words.index("…4567"), "newest first"
    assert len(re.findall(r"<td><time [^>]+>[^<]+ \d\d:\d\d:\d\d\.\d{3}</time>", page.text)) == 2
    wrong = await root.submit(page, f"/console/suppliers/{id}/watch", minutes="99")
    assert (wrong.status, "minutes must be 1 to 15" in wrong.words) == (400, True)


async def test_its_requests_are_watched_over_http(pool: Pool, root: Browser, settings: Settings) -> None:
    web = await add(pool, settings, "web", kind="twilio", settings={})
    page = await root.get(f"/console/suppliers/{web}")
    assert ("Watch its PDUs" in page.words, "Watch its requests" in page.words) == (False, True)
    page = await root.submit(page, f"/console/suppliers/{web}/watch")
    assert "Last requests" in page.words
    tap = HttpTap(["xyzzy-plugh"])
    message = Message("258841234567", "ACME", "Hello", "gsm7", "1", "")
    heard: list[Any] = []
    asked = Request("https://api.example.net/send?to=%2B258841234567&text=Hello&key=xyzzy-plugh", b"body")
    tap.asked(asked, [message], heard.append)(http.Answer(429, b"{}", None, 0.25))
    async with pool.acquire() as conn:
        await pdus.keep(conn, [(web, one) for one in tap.take()])
    page = await root.get(f"/console/suppliers/{web}")
    for said in ("POST 1 429 milliseconds=250 octets=2", "/send?to=…4567&text=(5)&key=(11) octets=4"):
        assert said in page.words, said
    for hidden in ("841234567", "Hello", "xyzzy"):
        assert hidden not in page.text, hidden


async def test_its_state_and_what_is_found_are_of_one_moment(pool: Pool, root: Browser, settings: Settings) -> None:
    id = await add(pool, settings)
    pages = ("/console/suppliers", f"/console/suppliers/{id}", "/console/now")
    # The result is cached for some seconds from here on, for the bell.
    assert "no session bound" in (await root.get("/console/health")).words
    bound = (
        "INSERT INTO supplier_sessions (supplier_id, slot, worker_id, lease_until, bound, bound_at)"
        " VALUES ($1, 1, gen_random_uuid(), now() + interval '1 minute', true, now())"
    )
    for change, is_connected in (
        (bound, True),
        ("UPDATE supplier_sessions SET lease_until = now() WHERE supplier_id = $1", False),
    ):
        await pool.execute(change, id)
        for path in pages:
            words = (await root.get(path)).words
            said = (re.search(r"(?<!not )\bconnected\b", words) is not None, "no session bound" in words)
            assert said == (is_connected, not is_connected), (path, words)
