"""Infobip Number Lookup (POST /number/1/query): several numbers in a request, answered at once.

A result names the network a number is currently in as `mccMnc`, even if the handset is off (error group 1). A number
that was rejected or that no route reaches (status groups 4 and 5) was not queried, and is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from heliograph.suppliers.http.kind import JSON, SECRET, Answer, Request, Secrets, listed, text_of, value_at
from heliograph.suppliers.lookups.kind import LookupAnswer, LookupKind, LookupSettings

#: Groups of a status: expired, rejected.
_NOT_ASKED = (4, 5)


class Settings(LookupSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at Infobip, with an address of its own such as https://x1y2z3.api.infobip.com."""


def request(settings: Settings, secrets: Secrets, numbers: Sequence[str]) -> Request:
    """One request for all numbers."""
    headers = {"Authorization": f"App {secrets[SECRET]}", "Content-Type": JSON, "Accept": JSON}
    return Request(f"{settings.base_url}/number/1/query", msgspec.json.encode({"to": numbers}), headers)


def answer(settings: Settings, numbers: Sequence[str], answer: Answer) -> LookupAnswer:
    """`results[]`, by number; errors of the whole request are in `requestError` or only in the HTTP status."""
    said = answer.json
    if answer.status != 200:
        words = text_of(value_at(said, "requestError", "serviceException", "text")) or text_of(
            value_at(said, "description")
        )
        return LookupAnswer({}, f"HTTP {answer.status} {words}".strip())
    told, error = {}, "" if listed(said, "results") else "no results"
    for one in listed(said, "results"):
        number, status = text_of(value_at(one, "to")), value_at(one, "status")
        if number not in numbers:
            continue
        if value_at(status, "groupId") in _NOT_ASKED:
            error = text_of(value_at(status, "name")) or "not asked"
        else:
            told[number] = text_of(value_at(one, "mccMnc"))
    return LookupAnswer(told, error)


KIND = LookupKind(
    name="infobip", title="Infobip Number Lookup", settings=Settings, most=100, request=request, answer=answer
)
