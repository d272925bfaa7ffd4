"""Fields shared by many requests or responses, described once."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.base import phones
from heliograph.base.errors import Invalid

#: Marks a field that is an alias of one that the document describes.
ALIAS = "x-alias-of"
#: Marks a field that is required, where the struct cannot express that because its alias may be given instead.
NEEDED = "x-needed"

Item = TypeVar("Item")

#: A time in responses: ISO 8601, UTC, milliseconds.
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]

#: A region that a filter names.
COUNTRY = "^([A-Z]{2}|001)$"
NO_COUNTRY = "must be the code of a country, such as `MZ`"
Country = Annotated[
    Annotated[str, Meta(pattern=COUNTRY)] | None,
    Meta(description="Only messages to this ISO region; `001`: to numbers that belong to no country."),
]

#: The class of an SMS, which routes, limits and quiet hours may depend on.
TrafficClass = Literal["otp", "transactional", "marketing"]

Success = Annotated[Literal[True], Meta(description="Always true; errors have false and an `error` object.")]
Queued = Annotated[Literal[True], Meta(description="Always true: the work is stored and will be done.")]
CreatedAt = Annotated[Time, Meta(description="When it was created.")]
#: Category of a WhatsApp template.
TemplateName = Annotated[str, Meta(max_length=512)]
Items = Annotated[list[Item], Meta(description="The items, in the order that the operation documents.")]
NextCursor = Annotated[str | None, Meta(description="Pass as `cursor` to get the next page; null on the last page.")]
HasMore = Annotated[bool, Meta(description="Whether there is a next page.")]


class AcceptedMessage(msgspec.Struct, rename="camel"):
    """The accepted message."""

    id: Annotated[UUID, Meta(description="Id of the message, used in reads and events.")]
    client_reference: Annotated[str | None, Meta(description="The reference given in the send, or null.")]


def alias_of(name: str) -> Meta:
    """The field is an alias of `name`: it is accepted, but left out of the document.

    Two spellings of one field in a schema become the same name in Java, Go and Python, which does not compile.
    """
    return Meta(description=f"Another spelling of `{name}`.", extra_json_schema={ALIAS: name})


def checked_country(given: str | None) -> str | None:
    """The region that a filter names. Raises Invalid for one that no number has, such as `UK` for `GB`."""
    if given is not None and not phones.is_region(given):
        raise Invalid(("country", "pattern", f"`country` {NO_COUNTRY}"))
    return given


def needed(description: str) -> Meta:
    """The field must be given under this name or under an alias of it."""
    return Meta(description=description, extra_json_schema={NEEDED: True})


def _number_pattern() -> str:
    """What `phones.parse` accepts, as a pattern for the document: a known calling code, 7 to 15 digits in all."""
    by_length: dict[int, list[str]] = {}
    for code in phones.REGIONS:
        by_length.setdefault(len(code), []).append(code)
    return "|".join(
        rf"^\+?(?:{'|'.join(codes)})[0-9]{{{7 - length},{15 - length}}}$" for length, codes in sorted(by_length.items())
    )


NUMBER = _number_pattern()
