"""Audit log: who changed what in the organization, filtered by the address, and as a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from uuid import UUID

import msgspec

from heliograph.accounts.api_keys import issued
from heliograph.audit import reading
from heliograph.audit.actions import ACTIONS, OF_INSTALLATION
from heliograph.audit.reading import AuditEntry, Filter
from heliograph.base.ids import time_of, uuid_in
from heliograph.dashboard import exporting
from heliograph.overview.exports.kinds import Audit
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page
from heliograph.pages.languages import alphabetical
from heliograph.pages.lists import pagination, ranges
from heliograph.pages.lists.changes import Change, changes
from heliograph.pages.lists.ranges import Range
from heliograph.pages.requests import Request
from heliograph.pages.templates import short

#: Filters of the address apart from the range, and their maximum length.
FIELDS, LONGEST = ("who", "action", "object"), 200


class AuditLine(msgspec.Struct, frozen=True):
    """An entry as it is shown."""

    entry: AuditEntry
    action: str
    #: The actor in words, the search that finds all their entries, and details shown below the actor.
    who: str
    who_sought: str
    kind: str
    object: str
    changes: list[Change]


async def show(request: Request) -> Answer:
    """A page of entries, newest first."""
    kept = _kept(request.query)
    range = ranges.read(request)
    wanted, problems = _filter(request, kept, range)
    size = pagination.size(request)
    async with request.reading() as conn:
        found = await reading.list_page(
            conn, wanted, after=pagination.after(request), limit=size, is_for_customers=True
        )
        keys = {one.who_id for one in found.entries if one.who == "key" and one.who_id is not None}
        names = await issued.names(conn, request.acting("live"), ids=keys)
    values = {
        "kept": kept,
        "range": range,
        "problems": problems,
        "is_filtered": any(kept.values()) or bool(range.name),
        "actions": sorted(
            (
                (name, request.text(label))
                for name, label in ACTIONS.items()
                if name.partition(".")[0] not in OF_INSTALLATION
            ),
            key=lambda one: alphabetical(one[1]),
        ),
        "lines": [_line(request, one, names) for one in found.entries],
        "zone": request.locale.zone,
        # The search ended before the page was full: show how far it got.
        "looked_until": time_of(found.seen) if found.seen is not None and len(found.entries) < size else None,
        "pages": pagination.pages(request, found.seen),
    }
    is_wrong = bool(problems or range.problems)
    return Page(template="organization/audit.html", values=values, status=422 if is_wrong else 200)


async def export(request: Request) -> Answer:
    """Export everything that matches."""
    range = ranges.read(request)
    wanted, problems = _filter(request, _kept(request.query), range)
    if problems or range.problems:
        return await show(request)
    form: Literal["csv", "jsonl"] = "jsonl" if request.form.get("format") == "json" else "csv"
    filters = Audit(form=form, delimiter=exporting.separator(request), filters=wanted)
    return await exporting.ask(request, request.acting("live"), filters)


def _kept(given: Mapping[str, str]) -> dict[str, str]:
    return {name: given.get(name, "").strip()[:LONGEST] for name in FIELDS}


def _filter(request: Request, kept: Mapping[str, str], range: Range) -> tuple[Filter, dict[str, str]]:
    """(filter, problems by field)"""
    problems = {}
    if kept["action"] and kept["action"] not in ACTIONS:
        problems["action"] = request.text("Choose one of the actions that are offered.")
    wanted = Filter(
        organization_id=request.acting("live").organization_id,
        who=kept["who"] or None,
        action=None if "action" in problems else kept["action"] or None,
        object=kept["object"] or None,
        date_from=range.since,
        date_to=range.until,
    )
    return wanted, problems


def _line(request: Request, one: AuditEntry, names: Mapping[UUID, str]) -> AuditLine:
    """`names`: names of keys, since entries contain only their ids."""
    kind = request.text(words.AUTHORS[one.who])
    name = one.who_name or (names.get(one.who_id, "") if one.who_id is not None else "")
    return AuditLine(
        entry=one,
        action=request.text(ACTIONS.get(one.action, one.action)),
        who=name or kind,
        who_sought=str(one.who_id) if one.who_id is not None else one.who_name or one.who,
        kind=_kind(one, kind, name),
        object=one.object_name or (short(one.object_id) if uuid_in(one.object_id) is not None else one.object_id),
        changes=changes(request, one),
    )


def _kind(one: AuditEntry, kind: str, name: str) -> str:
    """The text below the actor: the id of one without a name, otherwise the kind, unless it is a person."""
    if not name:
        return "" if one.who_id is None else short(one.who_id)
    return "" if one.who == "person" else kind
