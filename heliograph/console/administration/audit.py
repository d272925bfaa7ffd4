"""Audit log: who changed what, everywhere; roles that may not see all of it see only their own entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import UUID

from heliograph.accounts import organizations
from heliograph.audit import exporting, reading
from heliograph.audit.actions import ACTIONS
from heliograph.audit.reading import AuditEntry, AuditPage, Filter
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.console import acting
from heliograph.console.routing import descriptions as routes
from heliograph.overview.installation.organizations import names
from heliograph.pages.answers import Answer, Page, Stream
from heliograph.pages.languages import alphabetical
from heliograph.pages.lists import ranges
from heliograph.pages.lists.changes import Change, EntryWithChanges, with_changes
from heliograph.pages.lists.ranges import Range
from heliograph.pages.pieces.charts import MARK, SEPARATORS
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import AUDIT
from heliograph.sms.dispatch import routing

#: Entries per page, and maximum characters of a search.
SIZE, LONGEST = 50, 200
FIELDS = ("who", "action", "object", "organization")
#: How actions on routes begin.
ROUTE = "route."


async def show(request: Request) -> Answer:
    """A page of entries, newest first."""
    kept = {name: request.query.get(name, "").strip()[:LONGEST] for name in FIELDS}
    range = ranges.read(request)
    is_own = not request.may(permission=AUDIT)
    problems: dict[str, str] = {}
    async with request.reading() as conn:
        found = await _read(request, conn, kept, range, problems, is_own=is_own)
        called = await names(conn, (one.organization_id for one in found.entries if one.organization_id))
        has_routes = any(one.action.startswith(ROUTE) for one in found.entries)
        suppliers = {one.id: one.name for one in await routing.load(conn)} if has_routes else {}
    values = {"is_own": is_own, "called": called, **_values(request, found, kept, range, problems)}
    # Entries of routes hold their suppliers by id, as an undo needs them.
    values["lines"] = [
        EntryWithChanges(one.entry, _of_route(request, one.entry, suppliers))
        if one.entry.action.startswith(ROUTE)
        else one
        for one in values["lines"]
    ]
    return _shown("administration/audit.html", values)


def _of_route(request: Request, one: AuditEntry, suppliers: Mapping[UUID, str]) -> list[Change]:
    """The changes of a route, as its history words them."""
    changes = routes.entry(request, one, suppliers).changes
    return [Change(change.field, change.before or None, change.after or "–") for change in changes]


async def show_organization(request: Request) -> Answer:
    """History: the same for one organization, as a tab of its page."""
    kept = {name: request.query.get(name, "").strip()[:LONGEST] for name in FIELDS} | {"organization": ""}
    range = ranges.read(request)
    problems: dict[str, str] = {}
    async with request.reading() as conn:
        one = await acting.organization(conn, request, "id")
        asked = kept | {"organization": str(one.id)}
        found = await _read(request, conn, asked, range, problems, is_own=False)
    values = {"one": one, "called": {}, **_values(request, found, kept, range, problems)}
    return _shown("organizations/history.html", values)


async def export(request: Request) -> Answer:
    """Everything that matches, as a file streamed while it is read; the export is an entry itself."""
    kept, range = {name: request.query.get(name, "").strip()[:LONGEST] for name in FIELDS}, ranges.read(request)
    problems: dict[str, str] = {}
    async with request.writing() as conn:
        is_own = not request.may(permission=AUDIT)
        wanted = await _wanted(request, conn, kept, range, problems, is_own=is_own)
        if problems or range.problems:
            return await show(request)
        as_json = request.form.get("format") == "json"
        await exporting.begin(conn, request.principal, wanted, as_json=as_json)
    kind = "application/jsonl" if as_json else "text/csv"
    name = "audit-log.jsonl" if as_json else "audit-log.csv"
    return Stream(name=name, kind=f"{kind}; charset=utf-8", parts=_file(request, wanted, as_json=as_json))


async def _file(request: Request, wanted: Filter, *, as_json: bool) -> AsyncIterator[bytes]:
    separator = SEPARATORS.get(request.locale.language, ",")
    if not as_json:
        yield MARK.encode()
    async for _, text in exporting.pieces(request.reading_in_turn, wanted, as_json=as_json, delimiter=separator):
        yield text.encode()


async def _read(
    request: Request, conn: Connection, kept: dict[str, str], range: Range, problems: dict[str, str], *, is_own: bool
) -> AuditPage:
    """A page of matching entries. Invalid filters are added to `problems`, by field, and ignored."""
    wanted = await _wanted(request, conn, kept, range, problems, is_own=is_own)
    try:
        after = UUID(request.query["after"]) if request.query.get("after") else None
    except ValueError:
        after = None
    return await reading.list_page(conn, wanted, after=after, limit=SIZE)


async def _wanted(
    request: Request, conn: Connection, kept: dict[str, str], range: Range, problems: dict[str, str], *, is_own: bool
) -> Filter:
    organization_id = None
    if kept["organization"]:
        try:
            organization_id = (await organizations.find(conn, reference=kept["organization"])).id
        except NotFound:
            problems["organization"] = request.text("There is no organization of this name or id.")
    if kept["action"] and kept["action"] not in ACTIONS:
        problems["action"] = request.text("Choose one of the actions that are offered.")
    return Filter(
        organization_id=organization_id,
        who=str(request.operator.user_id) if is_own else kept["who"] or None,
        action=None if "action" in problems else kept["action"] or None,
        object=kept["object"] or None,
        date_from=range.since,
        date_to=range.until,
    )


def _values(
    request: Request, found: AuditPage, kept: dict[str, str], range: Range, problems: dict[str, str]
) -> dict[str, Any]:
    return {
        "kept": kept,
        "range": range,
        "problems": problems,
        "is_filtered": any(kept.values()) or bool(range.name),
        "lines": with_changes(request, found.entries),
        "zone": request.locale.zone,
        "actions": sorted(
            ((name, request.text(label)) for name, label in ACTIONS.items()), key=lambda one: alphabetical(one[1])
        ),
        "older": "" if found.seen is None else request.again(after=found.seen),
    }


def _shown(template: str, values: dict[str, Any]) -> Answer:
    is_wrong = values["problems"] or values["range"].problems
    return Page(template=template, values=values, status=422 if is_wrong else 200)
