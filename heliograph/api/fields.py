"""Fields that many answers have, described once."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from msgspec import Meta

Item = TypeVar("Item")

#: A time as it is answered: ISO 8601, UTC, milliseconds.
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]

Success = Annotated[Literal[True], Meta(description="Always true here; a refusal has false, and an `error`.")]
Queued = Annotated[Literal[True], Meta(description="The work is stored and will be done.")]
CreatedAt = Annotated[Time, Meta(description="When it was created.")]
Items = Annotated[list[Item], Meta(description="What was asked for, in the order that the operation names.")]
NextCursor = Annotated[str | None, Meta(description="`cursor` of the next page; null: this is the last one.")]
HasMore = Annotated[bool, Meta(description="Whether there is a next page.")]
