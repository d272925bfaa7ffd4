"""What the dashboard's lists offer: columns, each with a cell in its list's template, and choices to filter by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from heliograph.pages.lists import columns as lists
from heliograph.pages.lists.columns import Column, Columns
from heliograph.pages.requests import Request
from heliograph.people.roles import USAGE

COLUMNS: Mapping[str, Sequence[Column]] = {
    "messages": (
        Column("status", "Status"),
        Column("channel", "Channel"),
        Column("from", "From"),
        Column("reference", "Reference"),
        Column("took", "Took", is_end=True),
        Column("accepted", "Accepted", is_end=True),
        Column("by", "Sent by", is_usual=False),
        Column("campaign", "Campaign", is_usual=False),
        Column("country", "Country", is_usual=False),
        Column("segments", "Segments", is_usual=False, is_end=True),
        Column("price", "Price", is_usual=False, is_end=True),
        Column("sent", "Sent", is_usual=False, is_end=True),
        Column("delivered", "Delivered", is_usual=False, is_end=True),
        Column("id", "Id", is_usual=False),
    ),
    "contacts": (
        Column("number", "Number"),
        Column("tags", "Tags"),
        Column("opted_out", "Opted out"),
        Column("written", "Last messaged"),
        Column("since", "Since", is_end=True),
        Column("delivered", "Last delivered", is_usual=False),
        Column("country", "Country", is_usual=False),
        Column("first_name", "First name", is_usual=False),
        Column("last_name", "Last name", is_usual=False),
        Column("changed", "Last changed", is_usual=False, is_end=True),
        Column("id", "Id", is_usual=False),
    ),
    "opt-outs": (
        Column("how", "How"),
        Column("since", "Since", is_end=True),
        Column("country", "Country", is_usual=False),
        Column("message", "Message", is_usual=False),
    ),
    "campaigns": (
        Column("status", "Status"),
        Column("progress", "Progress"),
        Column("people", "People", is_end=True),
        Column("when", "When", is_end=True),
        Column("rate", "Messages a minute", is_usual=False, is_end=True),
        Column("ends", "Expected to end", is_usual=False, is_end=True),
        Column("pace", "Pace", is_usual=False, is_end=True),
        Column("made", "Created", is_usual=False, is_end=True),
        Column("completed", "Completed", is_usual=False, is_end=True),
        Column("id", "Id", is_usual=False),
    ),
    "templates": (
        Column("language", "Language"),
        Column("category", "Category"),
        Column("status", "Status"),
        Column("quality", "Quality"),
        Column("values", "Values", is_end=True),
        Column("sent", "Sent", is_end=True),
        Column("changed", "Changed", is_end=True),
        Column("id", "Id", is_usual=False),
    ),
    "deliveries": (
        Column("result", "Result"),
        Column("status", "Status", is_end=True),
        Column("took", "Took", is_end=True),
        Column("attempt", "Attempt", is_end=True),
        Column("begun", "Started"),
        Column("message", "Message", is_usual=False),
        Column("id", "Id", is_usual=False),
    ),
    "requests": (
        Column("status", "Status"),
        Column("key", "Key"),
        Column("idempotency", "Idempotency"),
        Column("took", "Took", is_end=True),
        Column("time", "Time", is_end=True),
        Column("operation", "Operation", is_usual=False),
        Column("address", "Address", is_usual=False),
        Column("client", "Client", is_usual=False),
        Column("id", "Request id", is_usual=False),
    ),
}

#: The permission that a column requires.
NEEDS: Mapping[tuple[str, str], str] = {("messages", "price"): USAGE}


def columns(request: Request, list: str) -> Columns:
    """The columns of one of these lists, as the person has arranged them; those they may not see are not offered."""
    offered = [
        one
        for one in COLUMNS[list]
        if (permission := NEEDS.get((list, one.name))) is None or request.may(permission=permission)
    ]
    return lists.read(request, list, offered)


def not_offered(
    request: Request, chosen: Mapping[str, Collection[str]], offered: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """What to say about each field of which something was `chosen` that is not `offered`, as in a changed address: if
    that was ignored, whoever does something to all that match would do it to everybody. "" is no choice."""
    said = request.text("Choose one of the filters that are offered.")
    return {field: said for field, known in offered.items() if any(one and one not in known for one in chosen[field])}
