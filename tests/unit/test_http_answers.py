"""Requests as bytes, and responses split at any byte: pure, so that every split can be tried."""

from __future__ import annotations

import contextlib
import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.http.answers import (
    HEAD_BYTES,
    HEADERS,
    INTERIM_ANSWERS,
    KEPT_BYTES,
    READ_BYTES,
    AnswerReader,
    NotHttp,
    seconds_until,
)
from heliograph.http.writer import request, start

START = start("POST", "receiver.example:8443", "/hook?a=%2F")


def test_a_request_is_one_piece() -> None:
    assert request(START, {"content-type": "application/json", "x-name": "é"}, b"{}") == (
        b"POST /hook?a=%2F HTTP/1.1\r\nHost: receiver.example:8443\r\nUser-Agent: Heliograph/1\r\n"
        b"Accept-Encoding: identity\r\n"
        b"content-type: application/json\r\nx-name: \xc3\xa9\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert request(START, {}, b"\r\n\0").endswith(b"\r\nContent-Length: 3\r\n\r\n\r\n\0")


@pytest.mark.parametrize(
    "text", ["a\r\nb: c", "a\nb", "a\rb", "\n", "a\0b", "a\r\n", "\r\n\r\nPOST / HTTP/1.1", "\udcff"]
)
def test_no_header_ends_its_line(text: str) -> None:
    for headers in ({"x-one": text}, {text: "1"}, {"x-one": "1", "x-two": text, "x-three": "3"}):
        with pytest.raises(ValueError):
            request(START, headers, b"")


@given(st.dictionaries(st.text(), st.text(), max_size=4))
def test_as_many_lines_go_out_as_headers_were_given(headers: dict[str, str]) -> None:
    try:
        made = request(START, headers, b"body")
    except ValueError:
        return
    head, body = made.split(b"\r\n\r\n")
    assert body == b"body"
    assert len(head.splitlines() if head.isascii() else head.split(b"\r\n")) >= 5 + len(headers)
    assert head.count(b"\n") == head.count(b"\r") == 4 + len(headers)


def read(data: bytes, cuts: list[int] | None = None) -> AnswerReader:
    """Feed `data` in pieces until the response is complete."""
    reader = AnswerReader()
    ends = sorted({min(cut, len(data)) for cut in cuts or []} | {len(data)})
    at = 0
    for end in ends:
        if end > at and reader.feed(data[at:end]):
            break
        at = end
    return reader


def seen(reader: AnswerReader) -> tuple[object, ...]:
    return reader.status, reader.body, reader.retry_after, reader.complete


ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 204\r\n\r\n",
    b"HTTP/1.1 429 Slow down\r\nRetry-After: 7\r\nretry-after: 8\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: 1\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\nRetry-After: 9\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.0 500 Oh\nContent-Length: 2\n\nno",
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain;\r\n\tcharset=utf-8\r\nContent-Length: 2\r\n\r\nok",
]


@given(st.sampled_from(ANSWERS), st.lists(st.integers(1, 120), max_size=8))
def test_an_answer_is_the_same_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    assert seen(read(data, cuts)) == seen(read(data))
    assert seen(read(data, list(range(1, len(data))))) == seen(read(data))


def test_what_answers_say() -> None:
    assert [seen(read(data)) for data in ANSWERS] == [
        (200, b"hello", None, True),
        (204, b"", None, True),
        (429, b"", "7", True),
        (200, b"abcde", None, True),
        (200, b"ok", None, True),
        (500, b"no", None, True),
        (200, b"ok", None, True),
    ]
    assert [read(data).reusable for data in ANSWERS] == [True, True, True, True, True, False, True]


@pytest.mark.parametrize("more", [b"H", b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", b"x", b"\0"])
def test_what_comes_after_an_answer_ends_the_connections_use(more: bytes) -> None:
    reader = read(ANSWERS[0] + more)
    assert seen(reader) == (200, b"hello", None, True)
    assert not reader.reusable


def test_connection_close_is_heeded() -> None:
    assert not read(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").reusable
    assert not read(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n").reusable
    assert read(b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n").reusable


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (b"Keep-Alive: timeout=2, max=100", 1.0),
        (b"keep-alive: max=100, TIMEOUT = 15", 14.0),
        (b'Keep-Alive: timeout="5"', 4.0),
        (b"Keep-Alive: timeout=1", 0.5),
        (b"Keep-Alive: timeout=0", 0.0),
        (b"Keep-Alive: max=100", math.inf),
        (b"Keep-Alive: timeout=soon", math.inf),
        (b"Connection: Keep-Alive", math.inf),
    ],
)
def test_how_long_another_request_may_follow(said: bytes, seconds: float) -> None:
    """On a connection that the other side was about to close, a request was lost, and so its outcome unknown."""
    reader = read(b"HTTP/1.1 200 OK\r\n" + said + b"\r\nContent-Length: 0\r\n\r\n")
    assert (reader.keep_alive, reader.reusable) == (seconds, True)
    reader.reset()
    assert reader.keep_alive == math.inf


def test_a_switch_of_protocols_is_an_answer_and_the_end() -> None:
    for header in (b"", b"Connection: upgrade\r\nUpgrade: websocket\r\n"):
        reader = read(b"HTTP/1.1 101 Switching Protocols\r\n" + header + b"\r\n\x81\x05hello")
        assert (reader.status, reader.complete, reader.reusable) == (101, True, False)


def test_a_body_without_an_end_is_read_as_it_comes() -> None:
    reader = read(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
    assert (seen(reader), reader.reusable) == ((200, b"until the end", None, False), False)


def test_a_long_body_is_kept_in_part_and_read_in_part() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    whole = read(head % 30_000 + b"a" * 30_000)
    assert (whole.body, whole.complete, whole.reusable) == (b"a" * KEPT_BYTES, True, True)
    broken_off = read(head % 10_000_000 + b"a" * READ_BYTES)
    assert (broken_off.body, broken_off.complete, broken_off.reusable) == (b"a" * KEPT_BYTES, True, False)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_trailer_says_nothing() -> None:
    reader = read(CHUNKED + b"2\r\nok\r\n0\r\nRetry-After: 7\r\nConnection: close\r\nContent-Type: x\r\n\r\n")
    assert seen(reader) == (200, b"ok", None, True)


@pytest.mark.parametrize("cut", [7, 1_000])
def test_headers_that_are_asked_for_are_kept_and_those_of_no_other_head(cut: int) -> None:
    reader = AnswerReader(wanted=frozenset((b"x-usage",)))
    interim = b"HTTP/1.1 103 Hints\r\nX-Usage: early\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nX-USAGE: {85}\r\nX-Other: no\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = interim + head + b"2\r\nok\r\n0\r\nX-Usage: late\r\n\r\n"
    for at in range(0, len(data), cut):
        reader.feed(data[at : at + cut])
    assert (reader.headers, reader.body, reader.reusable) == ({"x-usage": "{85}"}, b"ok", True)
    reader.reset()
    assert reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert reader.headers == {}


def test_as_much_of_a_body_is_read_as_is_to_be_kept() -> None:
    for kept, length in ((100, READ_BYTES + 1), (READ_BYTES * 3, READ_BYTES * 3 + 1)):
        reader = AnswerReader(kept)
        reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length)
        assert reader.feed(b"x" * length)
        assert (len(reader.body), reader.reusable) == (kept, False)
    reader = AnswerReader(READ_BYTES * 3)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (READ_BYTES * 2))
    assert reader.feed(b"x" * READ_BYTES * 2)
    assert (len(reader.body), reader.reusable) == (READ_BYTES * 2, True)


@pytest.mark.parametrize("cut", [1, 100])
def test_a_trailer_is_refused_before_it_is_long(cut: int) -> None:
    """Fed in pieces of any size: how much the parser buffers and copies again is bounded."""
    reader = AnswerReader()
    reader.feed(CHUNKED)
    reader.feed(b"0\r\nX: ")
    with pytest.raises(NotHttp):
        for _ in range(HEAD_BYTES // cut + 1):
            reader.feed(b"a" * cut)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * (HEADERS + 1) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * HEAD_BYTES,
        b"HTTP/1.1 200 " + b"a" * HEAD_BYTES,
        b"HTTP/1.1 102 Processing\r\n\r\n" * (INTERIM_ANSWERS + 1),
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * HEAD_BYTES + b"\r\n\r\n",
        b"HTTP/1.1 103 Hints\r\nX: " + b"a" * (HEAD_BYTES - 10) + b"\r\n\r\nHTTP/1.1 200 OK\r\nY: bbbbbb\r\n\r\n",
        CHUNKED + b"0\r\nX: " + b"a" * HEAD_BYTES + b"\r\n\r\n",
        CHUNKED + b"0\r\n" + b"X: y\r\n" * (HEADERS + 1) + b"\r\n",
        b"HTTP/1.1 103 Hints\r\n" + b"X: y\r\n" * (HEADERS - 1) + b"\r\nHTTP/1.1 200 OK\r\nA: b\r\nC: d\r\n\r\n",
    ],
)
def test_more_than_is_read_is_refused_in_one_piece_or_many(data: bytes) -> None:
    for cuts in ([], list(range(0, len(data), 100)), list(range(0, len(data), 7))):
        with pytest.raises(NotHttp):
            read(data, cuts)


def test_a_connection_reads_one_answer_after_the_other() -> None:
    reader = AnswerReader()
    for _ in range(3):
        for data in ANSWERS[:5]:
            reader.reset()
            assert reader.feed(data)
            assert seen(reader) == seen(read(data))
            assert reader.reusable


@given(st.binary(max_size=300), st.lists(st.integers(1, 300), max_size=4))
def test_anything_else_is_a_reason_never_a_surprise(data: bytes, cuts: list[int]) -> None:
    for head in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"):
        with contextlib.suppress(NotHttp):
            reader = read(head + data, cuts)
            assert reader.status == 0 or 100 < reader.status <= 999
            assert len(reader.body) <= KEPT_BYTES


def test_seconds_until() -> None:
    now = datetime.datetime(2026, 3, 1, 12, 0, 0, tzinfo=datetime.UTC)
    assert seconds_until("120", now) == 120
    assert seconds_until("Sun, 01 Mar 2026 12:01:00 GMT", now) == 60
    assert seconds_until("Sun, 01 Mar 2026 11:00:00 GMT", now) == 0
    for text in (
        "soon",
        "",
        "-5",
        "Sun, 01 Mar 2026 12:01:00 +" + "9" * 30,
        "Sun, 01 Mar " + "9" * 30 + " 12:01:00 GMT",
    ):
        assert seconds_until(text, now) is None
    assert seconds_until("Mon, 01 Jan 0001 00:00:00 +2359", now) == 0
    assert seconds_until("9" * 100, now) == 999_999_999


DATES = st.tuples(*[st.sampled_from(["", "Sun,", "1", "99", "Mar", "2026", "-1", "12:01:00", ":", "+9999", "GMT"])] * 6)


@given(st.text(max_size=40) | DATES.map(" ".join))
def test_whatever_is_said_for_retry_after_is_seconds_or_nothing(text: str) -> None:
    found = seconds_until(text, datetime.datetime.now(datetime.UTC))
    assert found is None or found >= 0
