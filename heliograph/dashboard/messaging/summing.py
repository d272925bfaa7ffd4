"""The head of the list of messages: four figures for its filters, and why messages failed.

The rule nobody may break: nothing is counted here, and a figure never covers other messages than the list does. Figures
come from the roll-ups, which know time, channel, country and sender, and so do reasons where possible; for any other
filter, reasons are taken from the latest failures (`overview.explaining`) on request, with how far back these go.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of, uuid_in
from heliograph.dashboard.messaging.finding import Wanted
from heliograph.overview import explaining, figures
from heliograph.overview.figures import ARRIVED, TrafficSummary
from heliograph.pages.lists.ranges import LENGTHS
from heliograph.pages.requests import Request
from heliograph.traffic import LOST, Failed
from heliograph.why.words import Kind

#: The default range, and the number of reasons listed.
USUAL, REASONS = "24h", 20
#: Filters known to the roll-ups of messages, and to those of reasons; filters that change neither.
KNOWN = {"channel", "country", "sender"}
KNOWN_OF_REASONS = {"channel", "country", "reason", "status"}
NEUTRAL = {"direction"}
#: Query parameter that requests reasons: EXPLAIN=BEGUN, or the id of the message after which they continue.
EXPLAIN, BEGUN = "explain", "yes"


class Reason(msgspec.Struct, frozen=True):
    """Messages that failed for the same reason, and the address of their list."""

    code: str
    kind: Kind
    channel: str
    count: int
    #: Percentage of failed messages.
    share: float
    link: str


class Head(msgspec.Struct, frozen=True):
    """[since, until), in whole hours or days. `cards`: (title, figure, address of the list of these messages), empty if
    the roll-ups do not know them; `reasons`: most common first, None if the roll-ups do not know them."""

    since: datetime
    until: datetime
    #: The list has no range of its own.
    is_usual: bool
    cards: list[tuple[str, str, str]]
    reasons: list[Reason] | None


class Latest(msgspec.Struct, frozen=True):
    """Why the latest messages failed, for filters that the roll-ups do not know. `ask`: the address that requests this;
    everything else is empty until then."""

    ask: str
    is_asked: bool = False
    #: The range covered: from `since`, None: from the newest, back to `back_to`, None: to the oldest.
    since: datetime | None = None
    back_to: datetime | None = None
    reasons: list[Reason] = []
    #: Number of failed messages.
    total: int = 0
    #: Address of the reasons of older ones; "": there are none.
    older: str = ""


async def head(conn: Connection, request: Request, wanted: Wanted) -> Head | None:
    """What is shown above the list; None: the roll-ups do not know its filters."""
    asked = {name for name, value in wanted.typed.items() if value}
    if wanted.problems or wanted.range.problems or wanted.filters.direction == "inbound":
        return None
    if wanted.range.since is None and wanted.range.name:
        return None
    has_figures = asked <= KNOWN | NEUTRAL
    # Reasons are not rolled up by status, so the filter must have all failure statuses, or none at all.
    fails = not wanted.statuses or set(wanted.statuses) >= set(LOST)
    has_reasons = asked <= KNOWN_OF_REASONS | NEUTRAL and fails
    if not has_figures and not has_reasons:
        return None
    filters, until = wanted.filters, wanted.range.until
    told = await figures.summarize(
        conn,
        request.actor,
        since=wanted.range.since,
        until=until,
        usual=LENGTHS[USUAL],
        channel=filters.channel,
        country=filters.country,
        sender=filters.sender,
        has_figures=has_figures,
        has_reasons=has_reasons,
    )
    # Links list exactly these messages: whole hours, and the other filters.
    stretch = {"from": iso(told.since), "to": iso(told.until)}
    kept = {name: wanted.typed[name] for name in asked if name != "status"} | stretch
    cards = _cards(request, told, kept)
    return Head(told.since, told.until, not wanted.range.name, cards, _reasons(request, told, kept, wanted))


def _cards(request: Request, told: TrafficSummary, kept: dict[str, str]) -> list[tuple[str, str, str]]:
    now = told.figures
    if now is None:
        return []
    text, locale = request.text, request.locale
    arrived = request.to("/messages", **kept | {"status": ",".join(ARRIVED)})
    lost = request.to("/messages", **kept | {"status": ",".join(LOST)})
    # A non-breaking space between number and unit: on a phone the line breaks between the two times.
    within = " · ".join("–" if one is None else locale.duration(one).replace(" ", "\xa0") for one in (now.p50, now.p95))
    return [
        (locale.count_label("Accepted"), locale.number(now.accepted), request.to("/messages", **kept)),
        (locale.count_label("Delivered"), "–" if now.rate is None else f"{locale.number(now.rate, 1)}\xa0%", arrived),
        (text("Half within · 95 of 100 within"), within, arrived),
        (locale.count_label("Failed"), locale.number(now.failed), lost if now.failed else ""),
    ]


def _reasons(request: Request, told: TrafficSummary, kept: dict[str, str], wanted: Wanted) -> list[Reason] | None:
    if told.reasons is None:
        return None
    found = [one for one in told.reasons if wanted.filters.failure_code in (None, one.reason)]
    return _shares(request, found, kept)


async def latest(conn: Connection, request: Request, wanted: Wanted) -> Latest | None:
    """Reasons where `head` has none; None: the list cannot have failed messages."""
    if wanted.problems or wanted.range.problems or not explaining.may_fail(wanted.filters):
        return None
    asked = request.query.get(EXPLAIN, "")
    after = uuid_in(asked)
    ask = request.again(**{EXPLAIN: BEGUN, "after": "", "open": ""})
    if after is None and asked != BEGUN:
        return Latest(ask)
    found = await explaining.explain(conn, request.actor, filters=wanted.filters, after=after)
    kept = {name: value for name, value in wanted.typed.items() if value and name != "status"} | wanted.range.query
    return Latest(
        ask,
        True,
        None if after is None else time_of(after),
        found.back_to,
        _shares(request, found.reasons, kept),
        sum(one.count for one in found.reasons),
        "" if found.seen is None else request.again(**{EXPLAIN: found.seen.hex, "after": "", "open": ""}),
    )


def _shares(request: Request, found: Sequence[Failed], kept: dict[str, str]) -> list[Reason]:
    total = sum(one.count for one in found)
    return [
        Reason(
            one.reason,
            "sms_failure" if one.channel == "sms" else "whatsapp_failure",
            one.channel,
            one.count,
            100 * one.count / total,
            request.to("/messages", **kept | {"channel": one.channel, "reason": one.reason}),
        )
        for one in found[:REASONS]
    ]
