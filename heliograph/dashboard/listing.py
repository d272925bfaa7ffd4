"""The columns that lists of the dashboard offer, list by list: each has a cell in its list's template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heliograph.pages.lists.columns import Column

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
        Column("sent", "Sent", is_usual=False, is_end=True),
        Column("delivered", "Delivered", is_usual=False, is_end=True),
        Column("id", "Id", is_usual=False),
    ),
}
