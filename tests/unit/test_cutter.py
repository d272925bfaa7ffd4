"""Requests are kept apart before they are parsed: held against the parser itself."""

from __future__ import annotations

import random

import httptools
import pytest

from heliograph.api.cutter import Cutter

BLANK = b"\r\n\r\n"
REQUESTS = [
    b"GET /v1/ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\r\nGET /v1/ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 13\r\n\r\n" + BLANK * 3 + b"x",
    b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n" + BLANK,
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n" + BLANK + b"\r\n1\r\n0\r\n0;x=y\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\r\n\r\n0\r\nX: y\r\nZ:\r\n\r\n",
]


class Reading:
    """Parses pieces as a connection does, and notes where requests end."""

    def __init__(self) -> None:
        self.cutter = Cutter()
        self.parser = httptools.HttpRequestParser(self)
        self.length: int | None = None
        self.ended = 0
        #: Of the piece that is being parsed: a request has ended in it.
        self.has_end = False
        self.body = b""

    def on_message_begin(self) -> None:
        assert not self.has_end, "this piece has the end of another request already"
        self.length = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"Content-Length":
            self.length = int(value)

    def on_headers_complete(self) -> None:
        if self.length is not None:
            self.cutter.expect_body(self.length)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.cutter.expect_head()
        self.ended += 1
        self.has_end = True

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            end = self.cutter.end_of_piece(data, at)
            assert at < end <= len(data)
            self.has_end = False
            self.parser.feed_data(data[at:end])
            at = end


@pytest.mark.parametrize("seed", range(40))
def test_no_piece_holds_two_requests_however_they_arrive(seed: int) -> None:
    chosen = random.Random(seed)
    stream = b"".join(chosen.choices(REQUESTS, k=30))
    reading = Reading()
    at = 0
    while at < len(stream):
        size = chosen.choice((1, 2, 3, 5, 40, 400))
        reading.feed(stream[at : at + size])
        at += size
    assert reading.ended == 30


def test_a_body_of_blank_lines_costs_what_it_weighs() -> None:
    """As many pieces as lines at most, and no byte is looked at again."""
    cutter = Cutter()
    data = BLANK * 1_000
    at = pieces = 0
    while at < len(data):
        at = cutter.end_of_piece(data, at)
        pieces += 1
    assert pieces == 1_000
    cutter.expect_body(len(data))
    assert cutter.end_of_piece(data, 0) == len(data)
