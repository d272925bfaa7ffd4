"""The benchmark's own parts: requests that all differ, an honest load generator, and budgets that can fail."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime

import pytest

from bench.counted import Counts, Kind
from bench.database import Work
from bench.figures import BUDGETS, Report
from bench.load import Options, Result, generate, percentile, requests
from bench.overhead import Round, show
from bench.process import Fixed
from bench.sink import Sink
from bench.stage import shortened
from bench.statement_costs import costs, shown
from heliograph.webhooks.delivery.signing import Signer, new_secret


async def against_fixed(**options: object) -> Result:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Fixed, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        return await generate(Options(port=port, key="hg_live_x", connections=4, **options))  # type: ignore[arg-type]
    finally:
        server.close()


def test_every_request_is_whole_and_has_a_key_and_a_recipient_of_its_own() -> None:
    request = requests(Options(port=1, key="hg_live_x", connections=1))
    seen = set()
    for number in (0, 1, 9_985, 9_986, 20_000, 9_985_999):
        head, body = request(number).split(b"\r\n\r\n")
        assert int(re.search(rb"content-length: (\d+)", head)[1]) == len(body)  # type: ignore[index]
        recipient = json.loads(body)["to"]
        assert re.fullmatch(r"\+25884\d{7}", recipient)
        assert int(recipient[-4:]) > 13  # what simulators take for an order
        key = re.search(rb"idempotency-key: (\S+)", head)[1]  # type: ignore[index]
        seen.add((recipient, key))
    assert len({recipient for recipient, _ in seen}) == len({key for _, key in seen}) == 6


async def test_a_count_is_kept_exactly() -> None:
    result = await against_fixed(count=500)
    assert result.statuses == {"202": 500}
    assert result.accepted == 500
    assert 0 < result.p50 <= result.p99 <= result.worst


async def test_a_rate_is_not_exceeded() -> None:
    result = await against_fixed(seconds=0.3, rate=200.0)
    assert 0 < result.statuses["202"] <= 200 * result.seconds * 1.5


def test_percentiles() -> None:
    ordered = [float(one) for one in range(1, 101)]
    assert (percentile(ordered, 0.5), percentile(ordered, 0.99), percentile(ordered, 1.0)) == (51.0, 100.0, 100.0)
    assert percentile([], 0.5) == 0.0


def test_the_median_is_judged_and_a_miss_is_named() -> None:
    report = Report()
    report.add("accept_64", "accepted", [15_000.0, 1.0, 14_000.0], "/s")
    report.add("pgbench_64", "pgbench", [20_000.0, 20_000.0, 20_000.0], "/s")
    report.work["accept"] = {"commits": 0.03, "wal": 1_200.0}
    report.ratio("accept_ratio_64", "accepted ÷ pgbench", "accept_64", "pgbench_64")
    report.add("accept_p99_64", "p99", [26.0], "ms")
    assert report.figures["accept_ratio_64"].value == 0.7
    assert report.missed() == ["p99"]
    assert "MISSES" in report.text()
    assert json.loads(report.as_json())["missed"] == ["p99"]
    assert json.loads(report.as_json())["work"]["accept"]["wal"] == 1_200.0
    assert "commits" in report.markdown()


def test_an_aim_is_never_easier_than_its_budget() -> None:
    assert all(budget.judge(budget.aim) == "meets the aim" for budget in BUDGETS.values())
    assert all(budget.judge(budget.budget) != "MISSES" for budget in BUDGETS.values())


def test_what_was_done_is_told_for_each_message() -> None:
    before, after = Work(10.0, 1e6, 5.0, 4.0, 3.0, 2.0), Work(30.0, 3e6, 105.0, 4.0, 3.0, 12.0)
    assert after.since(before, messages=10.0) == Work(2.0, 2e5, 10.0, 0.0, 0.0, 1.0)


def test_of_a_long_complaint_both_ends_are_shown() -> None:
    assert shortened("all of it") == "all of it"
    text = shortened("the cause\n" + "prepared statement does not exist\n" * 500 + "the end")
    assert text.startswith("the cause\n")
    assert text.endswith("the end")
    assert len(text) <= 3010


def webhook(secret: str, id: str, *, lines: str = "") -> bytes:
    body = b'{"id":"%s","type":"t","data":{"message":{"acceptedAt":"2026-03-01T12:00:00.000Z"}}}' % id.encode()
    lines = lines or Signer([secret]).lines(event_id=id, request_id="r", body=body, at=datetime.now(UTC))
    return f"POST / HTTP/1.1\r\nhost: a\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def test_the_receiver_judges_each_webhook_wherever_its_bytes_are_cut() -> None:
    secret = new_secret()
    sink = Sink(secret)
    sent = [webhook(secret, "a"), webhook(secret, "b"), webhook(secret, "a"), webhook(new_secret(), "c")]
    async with await sink.listen(0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        for number, data in enumerate(sent):
            for piece in (data[: 40 * number], data[40 * number :]):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 401" if number == 3 else b"HTTP/1.1 200")
        writer.close()
    counters = sink.counters
    assert (counters.requests, counters.received, counters.duplicates, counters.bad_signatures) == (4, 2, 1, 1)
    assert counters.malformed == 0
    assert sink.latencies()["p50"] > 0
    assert sink.latencies()["p50"] == 0  # those that arrived since


def test_what_statements_used_is_added_up_by_their_texts() -> None:
    def entry(kind: str, seconds: float, statement: str) -> str:
        return (
            f"\n7 LOG:  {kind} STATISTICS\n7 DETAIL:  ! system usage stats:\n"
            f"\t!\t{seconds:.6f} s user, 0.000001 s system, 9.000000 s elapsed\n\t!\t[1.0 s user, 1.0 s system total]\n"
            f"7 STATEMENT:  {statement}"
        )

    log = "7 LOG:  checkpoint starting" + "".join(
        [
            entry("PARSE MESSAGE", 0.000009, "\n\tSELECT 1\n\t  FROM t\n"),
            *(entry("EXECUTE MESSAGE", 0.000019, "\n\tSELECT 1\n\t  FROM t\n") for _ in range(2)),
            entry("QUERY", 0.000099, "COMMIT;"),
        ]
    )
    found = costs(log)
    assert [(one.statement, one.times, round(one.seconds * 1e6)) for one in found] == [
        ("COMMIT;", 1, 100),
        ("SELECT 1 FROM t", 2, 50),
    ]
    assert shown(found, 10)[0].split()[0] == "15.0"
    assert shown(found, 10)[1].split() == ["10.0", "1", "×", "100", "µs", "COMMIT;"]


def test_an_overhead_is_the_share_of_what_was_counted() -> None:
    done = Round({"api": 60.0, "worker": 140.0})
    done.add({"counter": Kind(2_000, 500.0), "log line": Kind(10, 50_000.0), "wake": Kind(100, 20_000.0)}, 1_000)
    done.add({"counter": Kind(1_000, 1_000.0)}, 1_000)
    # 1 + 0.5 + 2 + 1 µs of 200 µs.
    assert done.share == pytest.approx(2.25)
    report = Report()
    show(report, [done])
    assert report.missed() == [report.figures["overhead"].label]
    assert report.figures["overhead_counter"].label == "  additions to counters: 3 a message, 667 ns each"
    assert report.figures["overhead_counter"].value == pytest.approx(2)
    assert report.costs["whole way, counted"] == {"api": 60.0, "worker": 140.0}


def test_what_is_done_to_metrics_is_counted_and_measured() -> None:
    counts, done = Counts(), list[str]()
    for _ in range(3):
        counts.note(("counter", "one"), lambda: done.append("one"))
    counts.note(("counter", "another"), lambda: done.append("another"))
    found = counts.measured()
    assert found["counter"].times == 4
    assert found["counter"].nanoseconds > 0
    assert {"one", "another"} == set(done)
