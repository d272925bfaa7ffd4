"""Requests, complete, broken and mutated, in any pieces: the events are the same however bytes are split, and the
result equals that of llhttp and h11.
"""

from __future__ import annotations

import contextlib
import random
import re
from typing import Any

import h11
import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heliograph.http.heads import HttpError, RequestHead
from heliograph.http.reader import CHUNK_LINE_BYTES, END, ReaderLimits, RequestReader
from tests.http_requests import CUTS, REQUESTS, broken

#: A message as read: its head, its body, whether it ended.
Message = tuple[Any, bytes, bool]
#: The result of reading: messages, the error, remaining bytes.
Outcome = tuple[list[Message], tuple[int, str] | None, int]

LIMITS = ReaderLimits()
#: So small that mutations exceed them.
NARROW = ReaderLimits(target_bytes=24, head_bytes=160, fields=6, body_bytes=40)


def read(data: bytes, cuts: list[int] | None = None, limits: ReaderLimits = LIMITS) -> Outcome:
    """Feed `data` in pieces, and collect all events after each."""
    reader = RequestReader(limits)
    messages: list[Message] = []
    ends = sorted({min(cut, len(data)) for cut in cuts or []} | {len(data)})
    at = 0
    for end in ends:
        reader.feed(data[at:end])
        at = end
        try:
            while (event := reader.next_event()) is not None:
                if isinstance(event, bytes):
                    assert event, "no empty pieces"
                    head, body, _ = messages[-1]
                    messages[-1] = head, body + event, False
                elif event is END:
                    messages[-1] = *messages[-1][:2], True
                else:
                    messages.append((event, b"", False))
        except HttpError as error:
            return messages, (error.status, error.reason), 0
    return messages, None, reader.pending


# --- any split gives the same


@pytest.mark.parametrize("limits", [LIMITS, NARROW])
@given(sent=st.one_of(REQUESTS, broken(REQUESTS), st.binary(max_size=80)), cuts=CUTS)
def test_events_are_the_same_however_bytes_are_split(limits: ReaderLimits, sent: bytes, cuts: list[int]) -> None:
    at_once = read(sent, limits=limits)
    assert read(sent, cuts, limits) == at_once
    assert read(sent, list(range(1, len(sent))), limits) == at_once


def test_limits_are_the_same_however_bytes_are_split() -> None:
    """Values that are too long, at and beyond each limit."""
    head = b"GET / HTTP/1.1\r\nHost: a\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    rest = LIMITS.head_bytes - len(chunked)
    for more in (-1, 0, 1, 2, 10_000):
        for sent, status in (
            (b"GET /" + b"a" * (LIMITS.target_bytes - 1 + more) + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
            (b"GET /" + b"a" * (LIMITS.target_bytes - 1 + more), 414),
            (head + b"X: " + b"a" * (LIMITS.head_bytes - len(head) - 7 + more) + b"\r\n\r\n", 431),
            (head + b"X:y\r\n" * (LIMITS.fields - 1 + more) + b"\r\n", 431),
            (chunked + b"0\r\nX:" + b"a" * (rest - 6 + more) + b"\r\n\r\n", 431),
            (chunked + b"0\r\n" + b"X:y\r\n" * (LIMITS.fields - 2 + more) + b"\r\n", 431),
            (chunked + b"1;" + b"a" * (CHUNK_LINE_BYTES - 4 + more) + b"\r\nx\r\n0\r\n\r\n", 431),
        ):
            at_once = read(sent)
            # An incomplete address may be part of a longer line for a while.
            is_open = sent.endswith(b"a") and more <= 2
            assert at_once[1] is None if more <= 0 or is_open else at_once[1] and at_once[1][0] == status, sent[:40]
            for size in (1, 7, 1_000):
                assert read(sent, list(range(size, len(sent), size))) == at_once


def test_extensions_of_chunks_are_bounded_in_all() -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    usual, long = b"1;note=01234\r\nx\r\n", b"1;" + b"a" * 500 + b"\r\nx\r\n"
    assert read(head + usual * 20_000 + b"0\r\n\r\n")[1] is None
    messages, problem, _ = read(head + long * 20_000)
    assert problem == (431, "chunks have too many extensions")
    assert len(messages[0][1]) < 40


def test_a_body_is_bounded_where_somebody_says_so() -> None:
    limits = ReaderLimits(body_bytes=10)
    head = b"POST / HTTP/1.1\r\nHost: a\r\n"
    for size, problem in ((10, None), (11, (413, "the body is too large"))):
        body = b"x" * size
        assert read(head + b"Content-Length: %d\r\n\r\n" % size + body, limits=limits)[1] == problem
        chunks = b"5\r\nxxxxx\r\n%x\r\n%b\r\n0\r\n\r\n" % (size - 5, body[5:])
        assert read(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks, limits=limits)[1] == problem


def test_what_is_sent_ahead_stays_bytes() -> None:
    one, two = b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n", b"POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
    reader = RequestReader(LIMITS)
    reader.feed(one + two + b"\0")
    assert isinstance(reader.next_event(), RequestHead)
    assert reader.next_event() is END
    assert reader.pending == len(two) + 1
    head = reader.next_event()
    assert isinstance(head, RequestHead)
    assert (head.path, reader.next_event(), reader.next_event()) == ("/2", b"abc", END)
    assert reader.pending == 1
    with pytest.raises(HttpError):
        reader.next_event()


AHEAD = [
    b"GET /v1/ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\r\nGET /v1/ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\n\r\n" + b"\r\n\r\n" * 3 + b"x",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n\r\n\r\n\r\n1\r\n0\r\n0;x=y\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\r\n\r\n0\r\nX: y\r\nZ:\r\n\r\n",
]


@pytest.mark.parametrize("seed", range(20))
def test_each_request_ends_where_it_ends_however_they_arrive(seed: int) -> None:
    chosen = random.Random(seed)
    requests = chosen.choices(AHEAD, k=30)
    stream = b"".join(requests)
    ends = [sum(map(len, requests[: number + 1])) for number in range(30)]
    reader = RequestReader(LIMITS)
    at, found = 0, []
    while at < len(stream):
        size = chosen.choice((1, 2, 3, 5, 40, 400))
        reader.feed(stream[at : at + size])
        at = min(at + size, len(stream))
        while (event := reader.next_event()) is not None:
            if event is END:
                found.append(at - reader.pending)
    assert found == ends


HOSTILE = [
    (b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "there are both Transfer-Encoding and Content-Length"),
    (b"Content-Length: 3\r\nContent-Length: 3\r\n", "there are several Content-Length headers"),
    (b"Content-Length: 3, 3\r\n", "Content-Length is not a number"),
    (b"Content-Length: +3\r\n", "Content-Length is not a number"),
    (b"Content-Length: 0x3\r\n", "Content-Length is not a number"),
    (b"Content-Length: \r\n", "Content-Length is not a number"),
    (b"Content-Length: \xb3\r\n", "Content-Length is not a number"),
    (b"Transfer-Encoding: chunked, gzip\r\n", "Transfer-Encoding may be `chunked` only"),
    (b"Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding may be `chunked` only"),
    (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding may be `chunked` only"),
    (b"Transfer-Encoding : chunked\r\n", "a header is malformed"),
    (b"Transfer-Encoding\r\n : chunked\r\n", "a header is malformed"),
    (b"Transfer-Encoding:\x0bchunked\r\n", "a header is malformed"),
    (b"Transfer-Encoding: chunked\t\r\n", "Transfer-Encoding may be `chunked` only"),
    (b"Content-Length: 3\t\r\n", "Content-Length is not a number"),
    (b"X: y\r\n folded\r\n", "a header is malformed"),
    (b"X: y\nTransfer-Encoding: chunked\r\n", "a header is malformed"),
    (b"X: y\rTransfer-Encoding: chunked\r\n", "a header is malformed"),
    (b"Host: b\r\n", "there must be one Host header"),
]


@pytest.mark.parametrize(("fields", "reason"), HOSTILE)
def test_what_two_readers_could_understand_in_two_ways_is_refused(fields: bytes, reason: str) -> None:
    sent = b"POST / HTTP/1.1\r\nHost: a\r\n" + fields + b"\r\n0\r\n\r\n"
    assert read(sent) == ([], (400, reason), 0)


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b" ", b"GET", b"GET /", b"GET / HTTP/1.1 ", b"GET  / HTTP/1.1", b"GET / HTTP/1.2", b"GET / HTTP/11"),
        *(b"GET / http/1.1", b"GET x HTTP/1.1", b"GET /#x HTTP/1.1", b"GET /\xe9 HTTP/1.1", b"G(T / HTTP/1.1"),
        *(b"CONNECT a:1 HTTP/1.1", b"GET ftp://a/ HTTP/1.1", b"PRI * HTTP/2.0", b"x" * 21 + b" / HTTP/1.1"),
    ],
)
def test_what_is_no_request_line(line: bytes) -> None:
    messages, problem, _ = read(b"\r\n" + line + b"\nHost: a\r\n\r\n" if line else b"\n\n")
    assert messages == []
    assert problem is not None
    assert problem[0] == 400
    if line:
        messages, problem, _ = read(line + b"\r\nHost: a\r\n\r\n")
        assert (messages, problem and problem[0]) == ([], 400)


def test_no_end_is_waited_for_where_it_is_plain_that_this_is_not_http() -> None:
    for begun in (b"\x16\x03\x01\x02\x00", b"{", b"GARBAGE\r\n", b"GET / HTTP/1.1\n", b"\0", b"x" * 21):
        assert read(begun)[1] == (400, "the request line is malformed")


@given(REQUESTS)
def test_requests_that_are_whole_are_read_whole(data: bytes) -> None:
    messages, problem, left = read(data)
    assert (problem, left) == (None, 0)
    assert all(ended for _, _, ended in messages)


# --- and llhttp and h11 read the same


class Llhttp:
    """Requests as read by llhttp: (method, target, headers, body, whether it ended)."""

    def __init__(self, data: bytes) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.read: list[list[Any]] = []
        self.is_in_head = True
        with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.read.append([b"", b"", [], b"", False])
        self.is_in_head = True

    def on_url(self, url: bytes) -> None:
        self.read[-1][1] += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_in_head:
            self.read[-1][2].append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self.is_in_head = False
        self.read[-1][0] = self.parser.get_method()

    def on_body(self, body: bytes) -> None:
        self.read[-1][3] += body

    def on_message_complete(self) -> None:
        self.read[-1][4] = True


def ours(messages: list[Message]) -> list[list[Any]]:
    found = []
    for head, body, ended in messages:
        target = head.raw_path + (b"?" + head.query if head.query else b"")
        found.append([head.method.encode(), target, head.headers, body, ended])
    return found


def in_origin_form(read: list[list[Any]]) -> list[list[Any]]:
    """With targets as a path, and a query if there is one."""
    found = []
    for method, target, *rest in read:
        target = re.sub(rb"^https?://[^/?]*", b"", target, flags=re.IGNORECASE)
        if target[:1] not in (b"/", b"*"):
            target = b"/" + target
        found.append([method, target.removesuffix(b"?"), *rest])
    return found


def is_known_to_llhttp(head: RequestHead) -> bool:
    """It knows methods by name, and stops where another protocol is offered."""
    offers = any(name == b"upgrade" for name, _ in head.headers)
    return head.method in ("GET", "POST", "DELETE", "OPTIONS") and not offers


@given(st.one_of(REQUESTS, broken(REQUESTS)))
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a\nb\r\nhello\r\n0\r\n\r\n")
@example(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;;\r\nhello\r\n0\r\n\r\n")
@example(b'POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;a="b\r\nhello\r\n0\r\n\r\n')
def test_llhttp_reads_the_same_requests(data: bytes) -> None:
    messages, problem, _ = read(data)
    if problem is None and all(is_known_to_llhttp(head) for head, _, _ in messages):
        theirs = Llhttp(data).read
        # After one that closes the connection it reads nothing.
        last = next((at for at, (head, _, _) in enumerate(messages) if not head.keep_alive), len(messages))
        found = [each for each in ours(messages[: last + 1]) if each[4]]
        assert in_origin_form(theirs)[: len(found)] == found


def h11_request(data: bytes) -> list[Any] | None:
    """The first request as read by h11; None if it is invalid or incomplete."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        request = connection.next_event()
        if not isinstance(request, h11.Request):
            return None
        body = b""
        while isinstance(event := connection.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return None
    return (
        [request.method, request.target, list(request.headers), body, True] if type(event) is h11.EndOfMessage else None
    )


@given(st.one_of(REQUESTS, broken(REQUESTS)))
def test_h11_reads_the_same_first_request(data: bytes) -> None:
    messages, _, _ = read(data)
    if messages and messages[0][2]:
        theirs = h11_request(data.lstrip(b"\r\n"))  # it accepts no empty lines before it
        assert theirs is not None, data
        assert in_origin_form([theirs]) == ours(messages[:1])


@given(st.binary(max_size=300), CUTS)
def test_anything_else_is_an_error_never_a_surprise(data: bytes, cuts: list[int]) -> None:
    for start in (
        b"",
        b"GET / HTTP/1.1\r\nHost: a\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    ):
        _, problem, _ = read(start + data, cuts)
        assert problem is None or problem[0] in (400, 414, 431)


def test_the_parts_of_a_target() -> None:
    heads = {
        b"/a%20b?c=%20": ("/a b", b"/a%20b", b"c=%20"),
        b"http://h:1/x?y": ("/x", b"/x", b"y"),
        b"HTTP://h": ("/", b"/", b""),
        b"http://h?y": ("/", b"/", b"y"),
        b"*": ("*", b"*", b""),
        b"//a": ("//a", b"//a", b""),
    }
    for target, parts in heads.items():
        ((head, _, _),), problem, _ = read(b"OPTIONS " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        assert problem is None
        assert (head.path, head.raw_path, head.query) == parts
