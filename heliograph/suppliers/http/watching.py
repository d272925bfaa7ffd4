"""Observes an account's requests over HTTP: always the last request and response times; while an operator watches, the
latest exchanges, with the fields that may be shown.

The rule nobody may break: no body, header, host or query value is shown, except for the last four digits of a number.
No part of a path is shown that contains a secret or a message's text.
"""

from __future__ import annotations

import itertools
import re
import urllib.parse
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.histogram import LENGTH, bucket
from heliograph.http import answers as http
from heliograph.http.answers import Failure
from heliograph.suppliers.contract import LAST, Exchange, WireActivity
from heliograph.suppliers.http.kind import Message, Request

#: This many digits or more are a number, and masked.
NUMBER = 5
_DIGITS = re.compile(rf"\d{{{NUMBER},}}")
#: The form of a path's part that is a name; any other part is shown as its length.
_PLAIN = re.compile(r"[\w.~:@+-]{0,64}", re.ASCII)
_NAME = re.compile(r"[\w.\[\]-]{1,40}", re.ASCII)

Heard = Callable[[http.Answer | Failure], None]


class ExchangeRecorder:
    """Sees each request, and its answer before the caller does, and keeps the latest exchanges until they are taken."""

    def __init__(self, secrets: Collection[str]) -> None:
        self._secrets = [one for one in secrets if one]
        self._last: deque[Exchange] = deque(maxlen=LAST)
        self._numbers = itertools.count(1)

    def asked(self, request: Request, messages: Sequence[Message], heard: Heard) -> Heard:
        """A request is about to leave; returns the callback for its answer."""
        number = next(self._numbers)
        hidden = [*self._secrets, *(one.text for one in messages)]
        fields: dict[str, int | str] = {"address": shown(request.url, hidden), "octets": len(request.body)}
        if len(messages) > 1:
            fields["messages"] = len(messages)
        self._keep(number, request.method, "", fields, is_sent=True)

        def answered(found: http.Answer | Failure) -> None:
            status = found.kind if isinstance(found, Failure) else str(found.status)
            fields: dict[str, int | str] = {"milliseconds": round(found.duration * 1000)}
            if not isinstance(found, Failure):
                fields["octets"] = len(found.body)
            self._keep(number, request.method, status, fields, is_sent=False)
            heard(found)

        return answered

    def take(self) -> list[Exchange]:
        """Exchanges since the last call, oldest first, at most LAST."""
        taken = list(self._last)
        self._last.clear()
        return taken

    def _keep(self, number: int, method: str, status: str, fields: Mapping[str, int | str], *, is_sent: bool) -> None:
        at = clock.now()
        self._last.append(
            Exchange(at=at, is_sent=is_sent, command=method, sequence=number, status=status, fields=dict(fields))
        )


class RequestActivity:
    """The last request and answer, dated when they are read, and response times: requests need no clock reading of
    their own for it."""

    def __init__(self) -> None:
        self._method = self._status = ""
        self._asked = self._heard = 0
        #: As of the last reading: their number, and when the last one was first seen.
        self._sent: tuple[int, datetime | None] = (0, None)
        self._received: tuple[int, datetime | None] = (0, None)
        self._took = [0] * LENGTH

    def asked(self, method: str) -> None:
        """A request is about to leave."""
        self._asked += 1
        self._method = method

    def heard(self, found: http.Answer | Failure) -> None:
        """A request was answered, or failed."""
        self._heard += 1
        if isinstance(found, Failure):
            self._status = found.kind
        else:
            self._status = str(found.status)
            self._took[bucket(found.duration)] += 1

    def wire(self, in_flight: int) -> WireActivity:
        """The account's requests, with what happened since the last reading."""
        now = clock.now()
        if self._asked != self._sent[0]:
            self._sent = (self._asked, now)
        if self._heard != self._received[0]:
            self._received = (self._heard, now)
        return WireActivity(in_flight, self._method, self._sent[1], self._status, self._received[1])

    def took(self) -> list[int]:
        """Response times of the answers since the last call."""
        took, self._took = self._took, [0] * LENGTH
        return took


def shown(url: str, hidden: Collection[str]) -> str:
    """The parts of a URL's path and query that may be shown. `hidden`: secrets and texts."""
    parsed = urllib.parse.urlsplit(url)
    path = "/".join(_part(urllib.parse.unquote(one), hidden) for one in parsed.path.split("/"))
    pairs = urllib.parse.parse_qsl(parsed.query, keep_blank_values=True)
    query = "&".join(f"{name if _NAME.fullmatch(name) else '?'}={_value(value, hidden)}" for name, value in pairs)
    return (path or "/") + (f"?{query}" if query else "")


def _part(text: str, hidden: Collection[str]) -> str:
    if _holds(text, hidden) or not _PLAIN.fullmatch(text):
        return f"({len(text)})"
    return _DIGITS.sub(lambda found: phones.masked(found[0]), text)


def _holds(text: str, hidden: Collection[str]) -> bool:
    return any(one == text or (len(one) > 2 and one in text) for one in hidden)


def _value(text: str, hidden: Collection[str]) -> str:
    if _holds(text, hidden):  # a code or password of digits is not a number
        return f"({len(text)})"
    digits = text.removeprefix("+")
    return phones.masked(digits) if digits.isdigit() and len(digits) >= NUMBER else f"({len(text)})"
