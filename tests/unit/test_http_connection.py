"""Pipelined requests: they wait as received bytes, in order, and within a bound."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from heliograph.http.heads import Headers, HttpError
from heliograph.http.proxies import TrustedProxies
from heliograph.http.server.asgi import AT_ONCE, PIECE, Asgi, AsgiExchange
from heliograph.http.server.connection import ServerConnection
from heliograph.http.server.exchange import Response, Service
from heliograph.http.server.registry import Limits, Registry
from tests.http_requests import CUTS, REQUESTS, broken


class Wire(asyncio.Transport):
    """The client's side of a connection, without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.got = b""
        self.is_read = True
        self.has_ended = False
        self.is_gone = False
        self.is_aborted = False
        #: Runs after each piece of a response.
        self.on_write: Callable[[], None] | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None:
        self.got += data
        if self.on_write is not None:
            self.on_write()

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        assert self.is_read
        self.is_read = False

    def resume_reading(self) -> None:
        assert not self.is_read
        self.is_read = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self.is_gone:
            raise OSError(107, "Transport endpoint is not connected")
        self.has_ended = True

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return False


def refused(error: Exception) -> Response:
    return (error.status if isinstance(error, HttpError) else 500), [(b"content-length", b"0")], b""


class Talk:
    """A connection to an application that responds when released."""

    def __init__(self, **limits: Any) -> None:
        self.wire = Wire()
        self.begun: list[str] = []
        self.let = asyncio.Semaphore(0)
        self.limits = Limits(**limits)
        asgi = Asgi(self.answer)
        self.connection = ServerConnection(Service(Registry(self.limits), asgi.begin, refused, TrustedProxies()))
        self.connection.connection_made(self.wire)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.append(scope["path"])
        while (await receive())["more_body"]:
            pass
        await self.let.acquire()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": scope["path"][1:].encode()})

    async def settle(self, *, answers: int = 0) -> None:
        """Release this many responses, and wait until nothing moves any more."""
        for _ in range(answers):
            self.let.release()
        for _ in range(20 * (answers + 1)):
            await asyncio.sleep(0)


def ask(number: int, *, filling: int = 0, body: bytes | None = None) -> bytes:
    head = f"GET /{number:02d} HTTP/1.1\r\nHost: a\r\n"
    if filling:
        head += f"X: {'x' * filling}\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def test_what_is_sent_ahead_waits_as_it_came_and_nothing_more_is_read() -> None:
    talk = Talk()
    ahead = ask(2, body=b"\r\n\r\nGET /no HTTP/1.1\r\n\r\n") + ask(3) + ask(4)[:-5]
    talk.connection.data_received(ask(1) + ahead)
    await talk.settle()
    assert talk.begun == ["/01"]
    assert talk.connection.ahead == len(ahead)
    assert not talk.wire.is_read
    assert not talk.connection.is_idle
    await talk.settle(answers=2)
    assert talk.begun == ["/01", "/02", "/03"]
    assert talk.connection.ahead == len(ask(4)[:-5])
    await talk.settle(answers=1)
    assert (talk.connection.ahead, talk.wire.is_read) == (0, True), "the rest of the fourth may come"
    talk.connection.data_received(ask(4)[-5:])
    await talk.settle(answers=1)
    assert talk.begun == ["/01", "/02", "/03", "/04"]
    assert [part[-2:] for part in talk.wire.got.split(b"HTTP/1.1 200 OK")[1:]] == [b"01", b"02", b"03", b"04"]


async def test_no_request_begins_while_the_answer_before_it_cannot_leave() -> None:
    talk = Talk()
    talk.connection.data_received(ask(1) + ask(2))
    talk.connection.pause_writing()
    await talk.settle(answers=2)
    assert (talk.begun, talk.wire.got) == (["/01"], b"")
    talk.connection.resume_writing()
    await talk.settle()
    assert talk.begun == ["/01", "/02"]
    # The same if the client accepts all but the last piece of a response.
    talk.connection.data_received(ask(3) + ask(4))
    talk.wire.on_write = talk.connection.pause_writing
    await talk.settle(answers=2)
    assert talk.begun == ["/01", "/02", "/03"]
    assert talk.connection.ahead == len(ask(4))
    talk.wire.on_write = None
    talk.connection.resume_writing()
    await talk.settle()
    assert talk.begun == ["/01", "/02", "/03", "/04"]


async def test_an_answer_to_somebody_who_is_gone_ends_the_connection_and_nothing_else() -> None:
    """The other side has reset it, and the loop does not know yet."""
    talk = Talk()
    talk.wire.is_gone = True
    talk.connection.data_received(ask(1)[:-2] + b"Connection: close\r\n\r\n")
    await talk.settle(answers=1)
    assert talk.begun == ["/01"]
    assert talk.wire.is_aborted


async def test_more_bytes_ahead_than_may_be_end_the_connection_after_the_answer() -> None:
    """`ahead_bytes`."""
    for size, begun in ((1_000, 2), (1_001, 1)):
        talk = Talk(ahead_bytes=1_000)
        second = ask(2, filling=1)
        second = ask(2, filling=size - len(second) + 1)
        assert len(second) == size
        talk.connection.data_received(ask(1) + second)
        await talk.settle()
        assert talk.wire.got == b""
        assert talk.connection.ahead == (size if begun == 2 else 0), "what is refused is not kept"
        await talk.settle(answers=2)
        assert len(talk.begun) == begun
        assert [int(part[:3]) for part in talk.wire.got.split(b"HTTP/1.1 ")[1:]] == [200, 200 if begun == 2 else 400]
        assert talk.wire.has_ended == (begun == 1)


async def test_more_requests_ahead_than_may_be_end_the_connection_after_their_answers() -> None:
    talk = Talk(pipeline=3)
    talk.connection.data_received(b"".join(ask(number) for number in range(1, 9)))
    await talk.settle(answers=8)
    assert talk.begun == ["/01", "/02", "/03", "/04"]
    assert [int(part[:3]) for part in talk.wire.got.split(b"HTTP/1.1 ")[1:]] == [200] * 4 + [400]
    assert talk.wire.has_ended
    # Only those waiting at the same time count.
    talk = Talk(pipeline=3)
    for _ in range(3):
        talk.connection.data_received(b"".join(ask(number) for number in range(1, 5)))
        await talk.settle(answers=4)
    assert len(talk.begun) == 12
    assert not talk.wire.has_ended


async def talked(sent: bytes, cuts: list[int]) -> tuple[list[str], list[int], bool]:
    """(paths requested, statuses of the responses, whether the connection closes) if it is sent in pieces."""
    talk = Talk()
    ends = sorted({min(cut, len(sent)) for cut in cuts} | {len(sent)})
    at = 0
    for end in ends:
        talk.connection.data_received(sent[at:end])
        await talk.settle(answers=3)
        at = end
    return talk.begun, [int(part[:3]) for part in talk.wire.got.split(b"HTTP/1.1 ")[1:]], talk.wire.has_ended


@given(sent=st.one_of(REQUESTS, broken(REQUESTS)), cuts=CUTS)
def test_answers_are_the_same_however_requests_are_split(sent: bytes, cuts: list[int]) -> None:
    assert asyncio.run(talked(sent, cuts)) == asyncio.run(talked(sent, []))


class TalkAtOnce(Talk):
    """One whose application answers in one call where that is possible."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: Headers = [(b"content-length", b"2")]
        self.body = b""
        self.in_pieces = 0

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.append(scope["path"])
        while (await receive())["more_body"]:
            pass
        await self.let.acquire()
        body = self.body or scope["path"][1:].encode()
        if not scope["extensions"][AT_ONCE]["answer"](200, self.headers, body):
            self.in_pieces += 1
            await send({"type": "http.response.start", "status": 200, "headers": self.headers})
            await send({"type": "http.response.body", "body": body})


async def test_an_answer_in_one_call_is_the_same_as_in_messages() -> None:
    for answer_of in (Talk, TalkAtOnce):
        talk = answer_of()
        talk.connection.data_received(ask(1, body=b"x" * 10) + ask(2))
        await talk.settle(answers=1)
        assert talk.begun == ["/01", "/02"]
        talk.connection.data_received(ask(3).replace(b"Host", b"Connection: close\r\nHost"))
        await talk.settle(answers=2)
        first, second, third = talk.wire.got.split(b"HTTP/1.1 200 OK\r\n")[1:]
        assert [one.partition(b"\r\n\r\n")[2] for one in (first, second, third)] == [b"01", b"02", b"03"]
        assert b"connection: close" not in first + second
        assert b"\r\nconnection: close\r\n" in third
        assert talk.wire.has_ended
        assert not getattr(talk, "in_pieces", 0)


async def test_an_answer_in_one_call_without_a_length_is_chunked() -> None:
    talk = TalkAtOnce()
    talk.headers = []
    talk.connection.data_received(ask(1))
    await talk.settle(answers=1)
    assert talk.wire.got.endswith(b"\r\ntransfer-encoding: chunked\r\n\r\n2\r\n01\r\n0\r\n\r\n")
    assert not talk.in_pieces


async def test_an_answer_to_head_ends_with_its_head_whatever_the_application_sends() -> None:
    for answer_of in (Talk, TalkAtOnce):
        talk = answer_of()
        talk.connection.data_received(ask(1).replace(b"GET", b"HEAD") + ask(2))
        await talk.settle(answers=2)
        nothing, first, second = talk.wire.got.split(b"HTTP/1.1 200 OK\r\n")
        assert nothing == b""
        assert first.endswith(b"\r\ncontent-length: 2\r\n\r\n")
        assert second.endswith(b"\r\n\r\n02")


async def test_a_long_answer_is_sent_in_pieces() -> None:
    talk = TalkAtOnce()
    talk.body = b"a" * (PIECE + 1)
    talk.headers = [(b"content-length", b"%d" % len(talk.body))]
    talk.connection.data_received(ask(1))
    await talk.settle(answers=1)
    assert talk.wire.got.endswith(b"\r\n\r\n" + talk.body)
    assert talk.in_pieces == 1


async def test_an_answered_request_leaves_no_garbage() -> None:
    """The collector runs so rarely that thousands of requests would be kept."""
    talk = TalkAtOnce()
    gc.collect()
    gc.disable()
    try:
        for number in range(1, 4):
            talk.connection.data_received(ask(number))
            await talk.settle(answers=1)
        # Other tests may have left exchanges with their own connections.
        kept = [one for one in gc.get_objects() if isinstance(one, AsgiExchange) and one.connection is talk.connection]
        assert kept == []
    finally:
        gc.enable()
