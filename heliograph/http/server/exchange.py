"""One request and its answer, as a connection sees them, and the interface of the answering side."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph.http.heads import Headers, RequestHead
from heliograph.http.proxies import TrustedProxies
from heliograph.http.server.registry import Registry

if TYPE_CHECKING:
    from heliograph.http.server.connection import ServerConnection

#: Status, headers, body.
Response = tuple[int, Headers, bytes]

#: How much of an answer has been written: nothing, a part, all.
WAITING, BEGUN, COMPLETE = range(3)


class Exchange:
    """The implementation writes the answer with `connection.write`, keeps `answer` up to date, and calls
    `connection.answered` after the last byte. An answer is written completely or the connection ends: what follows a
    broken answer would be read as part of it."""

    __slots__ = ("answer", "connection", "head", "keep_alive")

    def __init__(self, connection: ServerConnection, head: RequestHead) -> None:
        self.connection = connection
        self.head = head
        self.answer = WAITING
        #: Whether another request may follow.
        self.keep_alive = head.keep_alive and not connection.registry.draining

    @property
    def is_full(self) -> bool:
        """No more of the body can be accepted for now."""
        return False

    def take_body(self, piece: bytes) -> None:
        """A piece of the body."""

    def end_request(self) -> None:
        """The request is complete."""

    def end_input(self) -> None:
        """The client has closed its half after this request; it may still read."""
        self.keep_alive = False

    def time_out(self) -> bool:
        """The rest of the request did not arrive in time. False: the connection has to be closed."""
        return False

    def disconnect(self) -> None:
        """The client is gone, or is no longer read from. An answer from now on is discarded."""


class Service:
    """What the connections of a server share."""

    def __init__(
        self,
        registry: Registry,
        begin: Callable[[ServerConnection, RequestHead], Exchange],
        render: Callable[[Exception], Response],
        proxies: TrustedProxies,
    ) -> None:
        """`begin` creates the exchange for a request whose head has arrived. `render` produces the answer to an error
        that no exchange answers (HttpError, or one that escaped from an application), without a `connection` header."""
        self.registry = registry
        self.begin = begin
        self.render = render
        self.proxies = proxies
