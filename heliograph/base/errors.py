"""Refusals: expected errors.

A refusal knows its code, its HTTP status and its text; the text is the docstring, so it exists once.
`api/shapes/envelope.py` is the only place that renders one. Surprises are ordinary exceptions and become a 500.

    Refusal
    ├── 400  Invalid (fields)                  a request that must be changed
    ├── 403  …                                 never allowed for this key or organization
    ├── 404  NotFound
    ├── 409  …                                 well formed, but conflicts with the current state
    ├── 429  …                                 too fast
    └── 503  Unavailable                       the database cannot be reached

Each concept declares its own refusals next to its rules; only shared ones are here.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar


class Refusal(Exception):
    """The request was refused."""

    code: ClassVar[str] = "refused"
    status: ClassVar[int] = 400

    def __init__(self, message: str | None = None, **details: Any) -> None:
        """`message` replaces the docstring's text; `details` become `error.details`."""
        # Line breaks in the source are removed from the text of an answer.
        self.message = message or " ".join(inspect.cleandoc(type(self).__doc__ or "").split("\n\n")[0].split())
        self.details = details
        #: Extra response headers, such as Retry-After; names in lower case.
        self.headers: dict[str, str] = {}
        super().__init__(self.message)


def kinds(of: type[Refusal] = Refusal) -> Iterator[type[Refusal]]:
    """Every kind of refusal below `of` whose module is loaded."""
    for one in of.__subclasses__():
        yield one
        yield from kinds(one)


class Invalid(Refusal):
    """The request is invalid."""

    code, status = "validation_error", 400

    def __init__(self, *fields: tuple[str, str, str], message: str | None = None) -> None:
        """`fields`: (field, issue, message) triples, such as ("to", "pattern", "`to` must be a phone number")."""
        listed = [{"field": field, "issue": issue, "message": text} for field, issue, text in fields]
        super().__init__(message or (str(listed[0]["message"]) if listed else None), fields=listed)

    def renamed(self, names: Mapping[str, str]) -> Invalid:
        """The same with other names for some fields, in its texts too."""

        def said(text: str) -> str:
            for name, other in names.items():
                text = text.replace(f"`{name}`", f"`{other}`")
            return text

        fields = [(one["field"], one["issue"], said(one["message"])) for one in self.details["fields"]]
        return Invalid(
            *((names.get(field, field), issue, text) for field, issue, text in fields), message=said(self.message)
        )


class Problems:
    """Gathers what is wrong with the fields of a request, so that all of them are reported at once, each with the first
    thing that is wrong with it."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, str, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, field: str, issue: str, message: str) -> None:
        """Something is wrong with a field."""
        self._found.setdefault(field, (field, issue, message))

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Keeps an Invalid raised within, and continues behind it."""
        try:
            yield
        except Invalid as refusal:
            for one in refusal.details["fields"]:
                self.add(one["field"], one["issue"], one["message"])

    def refusal(self) -> Invalid:
        """Everything gathered."""
        return Invalid(*self._found.values())

    def report(self) -> None:
        """Raises Invalid with everything gathered, if there is anything."""
        if self._found:
            raise self.refusal()


#: Texts for missing resources that several rules look up, by kind.
MISSING = {
    "api_key": "There is no such API key.",
    "message": "There is no such message.",
    "organization": "There is no such organization.",
    "sender_id": "There is no such sender ID.",
    "supplier": "There is no such supplier.",
    "supplier draft": "There is no such draft of a supplier.",
}


class NotFound(Refusal):
    """There is no such resource."""

    code, status = "not_found", 404

    def __init__(self, message: str | None = None, **details: Any) -> None:
        """`message`: for resources not in MISSING; those are named by `resource` in `details`."""
        super().__init__(message or MISSING.get(details.get("resource", "")), **details)


class Unavailable(Refusal):
    """The service is temporarily unavailable. Nothing was accepted; try again."""

    code, status = "service_unavailable", 503

    def __init__(self, retry_after: int = 1) -> None:
        super().__init__()
        self.headers = {"retry-after": str(retry_after)}


class CallbackNotGenuine(Refusal):
    """This callback is not genuine: it was not sent by whoever this address was given to."""

    code, status = "callback_not_genuine", 403
