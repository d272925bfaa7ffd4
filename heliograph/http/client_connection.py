"""One connection to a destination: one request at a time, with one write and one callback each.

It has no timer of its own: `HttpClient` sweeps over all connections and calls `expire` past their deadline, because a
timer set and cancelled for every request costs more than reading its answer.

The rule nobody may break: after `begin` its `done` is called once, with an `Answer` or a `Failure`, whatever the other
side does or fails to do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from heliograph.base.database import clock
from heliograph.base.network import sockets
from heliograph.http.answers import (
    Answer,
    AnswerReader,
    ConnectionTrace,
    Failure,
    FailureKind,
    NotHttp,
    seconds_until,
)

#: Once the status is known, so is the outcome: a trickling body gets no more time than this; seconds.
BODY_SECONDS = 2.0


class ClientConnection(asyncio.Protocol):
    """`deadline` and `idle_until` are times of `time.monotonic`."""

    __slots__ = (
        "_answer",
        "_body_seconds",
        "_done",
        "_first_byte",
        "_in_body",
        "_loop",
        "_lost",
        "_spoke_first",
        "_started",
        "_transport",
        "deadline",
        "idle_until",
        "way",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        lost: Callable[[ClientConnection], None],
        answer: AnswerReader | None = None,
        *,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        """`lost` is called when the connection has ended. `answer`: reads its answers."""
        self._loop = loop
        self._lost = lost
        self._answer = answer or AnswerReader()
        self._body_seconds = body_seconds
        self._done: Callable[[Answer | Failure], None] | None = None
        self._started = 0.0
        self._in_body = False
        self._first_byte = 0.0
        self._spoke_first = False
        self.deadline = 0.0
        self.idle_until = 0.0
        #: How it was opened; after the first request, only its address.
        self.way: ConnectionTrace | None = None

    def send(self, request: bytes, *, started: float, deadline: float) -> asyncio.Future[Answer | Failure]:
        """Send this and read the answer. `started`: the start of its duration."""
        future: asyncio.Future[Answer | Failure] = self._loop.create_future()

        def done(outcome: Answer | Failure) -> None:
            if not future.done():  # its caller was cancelled
                future.set_result(outcome)

        self.begin(request, started=started, deadline=deadline, done=done)
        return future

    def begin(
        self, request: bytes, *, started: float, deadline: float, done: Callable[[Answer | Failure], None]
    ) -> None:
        """As `send`; `done` is called with the outcome. It may begin the next request on this connection."""
        self._answer.reset()
        self._in_body = False
        self._first_byte = 0.0
        self._started = started
        self.deadline = deadline
        self._done = done
        if self._transport.is_closing():  # between its opening and now
            kind: FailureKind = "protocol" if self._spoke_first else "closed"
            detail = (
                "data arrived before the request" if self._spoke_first else "the connection ended before the request"
            )
            self._settle(Failure(kind, detail, 0.0, is_sent=False, way=self.way))
        else:
            self._transport.write(request)

    @property
    def is_free(self) -> bool:
        """Whether another request may be sent: the last answer was read completely, and nothing followed it."""
        return self._done is None and self._answer.reusable and not self._transport.is_closing()

    @property
    def keep_alive(self) -> float:
        """Seconds for which the other side, by its last answer, keeps it open; infinity if it does not say."""
        return self._answer.keep_alive

    def expire(self) -> None:
        """The deadline has passed."""
        if self._done is not None and self._answer.is_in_trailer():
            self._answer.reusable = False
            self._settle(self._failure("timeout", "the trailer did not end in time"))
        self._conclude("timeout", "no answer in time")
        sockets.reset(self._transport)
        self._transport.abort()

    def abort(self, detail: str = "closed by us") -> None:
        """Drop the connection at once; a request in progress fails with `detail`."""
        self._conclude("closed", detail)
        self._transport.abort()

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if self._done is None:  # without a request, as a mail server's or an SSH server's greeting
            self._spoke_first = True
            answer.reusable = False
            self._transport.abort()
            return
        if not self._first_byte:
            self._first_byte = time.monotonic()
        try:
            if answer.feed(data):
                self._answered()
            elif answer.status and not self._in_body:
                self._in_body = True
                self.deadline = min(self.deadline, time.monotonic() + self._body_seconds)
        except NotHttp as problem:
            answer.reusable = False
            self._settle(self._failure("protocol", str(problem)))
            sockets.reset(self._transport)
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._conclude("closed", "the connection ended before an answer", is_closed=error is None)
        self._answer.close()
        self._lost(self)

    def _conclude(self, kind: FailureKind, detail: str, *, is_closed: bool = False) -> None:
        """No more of the answer will come. `is_closed`: the other side has ended the connection, without an error."""
        self._answer.reusable = False
        if self._done is None:
            return
        if self._answer.status:
            self._answered(is_closed=is_closed)  # the status counts, however its body ends
        else:
            self._settle(self._failure(kind, detail))

    def _answered(self, *, is_closed: bool = False) -> None:
        answer = self._answer
        said = answer.retry_after
        retry_after = None if said is None else seconds_until(said, clock.now())
        began = self._started
        first = self._first_byte - began if self._first_byte else None
        body, start = answer.content(), bytes(answer.start)
        took = time.monotonic() - began
        cut, headers = answer.is_cut(is_closed=is_closed), answer.headers
        self._settle(Answer(answer.status, body, retry_after, took, start, first, self.way, headers, cut))

    def _failure(self, kind: FailureKind, detail: str) -> Failure:
        return Failure(kind, detail, time.monotonic() - self._started, way=self.way)

    def _settle(self, outcome: Answer | Failure) -> None:
        way = self.way
        if way is not None and way.connect is not None:
            self.way = ConnectionTrace(way.address)
        done, self._done = self._done, None
        if done is not None:
            done(outcome)
