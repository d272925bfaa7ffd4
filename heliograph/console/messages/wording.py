"""A message's timeline in the reader's language: names of steps, of their details, and of states.

Suppliers' ids, codes and texts are not translated. A test compares these tables with the timelines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from heliograph.base.sentences import Sentence, joined, kept
from heliograph.pages import words
from heliograph.pages.requests import Request
from heliograph.webhooks.timeline import Entry

#: Steps, by their names in `sending.timeline` and in the channels' timelines.
STEPS: Mapping[str, str] = {
    "accepted": "accepted",
    "received": "received",
    "attempt": "attempt",
    "submit": "submit, reconstructed",
    "answer": "answer",
    "status": "status",
    "event": "event",
    "webhook": "webhook",
    "part": "part",
    "receipt": "receipt",
    "receipt as received": "receipt as received",
    "sent twice": "sent twice",
    "waits for the end of quiet hours": "waits for the end of quiet hours",
    "suspicious": "suspicious",
    "held": "held",
    "released": "released",
    "wamid": "id at Meta",
    "money": "money",
}
#: Details of a step, and of a queue row.
DETAILS: Mapping[str, str] = {
    "attempt": "attempt",
    "attempts": "attempts",
    "available": "available",
    "because": "because",
    "begun_at": "being handed over since",
    "by": "by",
    "code": "code",
    "consumed": "consumed",
    "cost": "cost",
    "detail": "detail",
    "doubt": "may have been different",
    "due_at": "due",
    "endpoint": "endpoint",
    "err": "error",
    "failure": "failure",
    "held": "held because",
    "held_until": "held until",
    "hold": "hold",
    "id": "id",
    "ids": "ids",
    "key": "key",
    "kind": "kind",
    "lane": "lane",
    "lease_until": "leased until",
    "means": "means",
    "milliseconds": "milliseconds",
    "movement": "movement",
    "number": "number",
    "octets": "octets",
    "part": "part",
    "range": "range",
    "reference": "reference",
    "request_id": "request",
    "reserved": "reserved",
    "result": "result",
    "sent_as": "sent as",
    "state": "state",
    "status": "status",
    "supplier": "supplier",
    "supplier_message_id": "its id",
    "tries": "tries",
    "until": "until",
    "url": "address",
    "wamid": "id at Meta",
    "wamids": "ids at Meta",
    "words": "in Meta's words",
    "worker": "worker",
    "written": "written",
}
#: States of attempts, parts and receipts, and statuses of messages.
STATES: Mapping[str, str] = {**words.STATUSES, "refused": "Refused", "busy": "Busy", "unreachable": "Unreachable"}
#: Steps and results that have the colour of a status.
COLOURS: Mapping[str, str] = {
    "accepted": "accepted",
    "attempt": "sending",
    "sent twice": "expired",
    "suspicious": "expired",
    "held": "expired",
    "refused": "failed",
    "busy": "expired",
    "unreachable": "expired",
}
#: Values, by the name of the detail.
VALUES: Mapping[str, Mapping[str, str]] = {
    "state": STATES,
    "status": STATES,
    "result": words.RESULTS,
    "movement": words.MOVEMENTS,
    "kind": words.WORK,
}


#: Results of attempts that contain values. They are stored as English texts, and parsed to translate them.
ANSWERS = (
    "segment %(number)s of %(total)s: %(why)s",
    "part %(part)s of %(parts)s: %(why)s",
    "only %(sent)s of %(total)s segments were sent",
    "%(items)s items in the answer to %(messages)s",
    "cannot be written as SMPP: %(why)s",
    "cannot be written: %(why)s",
    "not understood: %(why)s",
)
_VALUE = re.compile(r"%\\\((\w+)\\\)s")
_READ = tuple((english, re.compile(_VALUE.sub(r"(?P<\1>.+?)", re.escape(english)), re.DOTALL)) for english in ANSWERS)


def step(request: Request, name: str) -> str:
    """The name of a step."""
    return request.text(STEPS[name]) if name in STEPS else name


def state(entry: Entry) -> str:
    """The status whose colour a step has; "": none."""
    said = str(entry.detail.get("state") or entry.detail.get("result") or entry.detail.get("status") or "")
    return COLOURS.get(entry.what, "") or COLOURS.get(said, "") or said


def details(request: Request, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(name, value) of each detail."""
    return [
        (request.text(DETAILS[name]) if name in DETAILS else name, _value(request, name, value))
        for name, value in values.items()
        if value is not None
    ]


def _value(request: Request, name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return request.locale.moment(value)
    if isinstance(value, list | tuple):
        return ", ".join(str(_value(request, name, one)) for one in value)
    if not isinstance(value, str):
        return value
    if (known := VALUES.get(name, {}).get(value)) is not None:
        return request.text(known)
    return request.locale.sentence(value if isinstance(value, Sentence) else _read_back(request, value))


def _read_back(request: Request, words: str) -> Sentence:
    """The sentence behind a stored text: one with values, or several joined by colons; otherwise one without values."""
    for english, pattern in _READ:
        if (found := pattern.fullmatch(words)) is not None:
            return Sentence.of(english, {name: _read_back(request, value) for name, value in found.groupdict().items()})
    first, colon, rest = words.partition(": ")
    if colon and request.locale.sentence(kept(first)) != first:
        return joined([kept(first), _read_back(request, rest)], ": ")
    return kept(words)
