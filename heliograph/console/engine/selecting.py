"""The queued work that a form selects, and how much it is, shown before anything is done with it.

The rule nobody may break: what is held or withdrawn is what the page showed, so the fields that select it are not on
the form that acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.console import typed as form_input
from heliograph.pages.answers import Answer, Page, refused
from heliograph.pages.requests import Request
from heliograph.queue import holds, waiting
from heliograph.queue.holds import OUTGOING, Selection
from heliograph.queue.waiting import Waiting, WaitingTotal, summed
from heliograph.sms.dispatch import suppliers

#: Fields that select work.
FIELDS = ("kind", "organization", "supplier", "older_than")
#: Lines per query, enough for complete sums; and sums shown before work is held or withdrawn.
EVERY, NAMED = 10_000, 20


async def selection(conn: Connection, given: Mapping[str, str]) -> Selection:
    """The selection. Raises Invalid, which names the field."""
    kind, of, line, age = (given.get(name, "").strip() for name in FIELDS)
    wrong, organization_id, supplier_id = Problems(), None, None
    if kind not in ("", *OUTGOING):
        wrong.add("kind", "enum", "There is no such kind of work.")
    if line and kind not in ("", "sms"):
        wrong.add("supplier", "channel", "Suppliers carry SMS only: choose SMS, or name no supplier.")
    long = holds.age(age) if age else None
    if age and long is None:
        wrong.add("older_than", "format", "Enter an age such as 90s, 15m, 2h or 3d.")
    with wrong.gathering():
        organization_id = (await form_input.organization(conn, of)).id if of else None
    try:
        supplier_id = await suppliers.id_of(conn, line) if line else None
    except NotFound:
        wrong.add("supplier", "unknown", "There is no supplier with this name or id.")
    wrong.report()
    return Selection(
        kinds=("sms",) if line else (kind,) if kind else OUTGOING,
        organization_id=organization_id,
        line=supplier_id,
        before=None if long is None else await holds.ago(conn, long),
    )


def typed(given: Mapping[str, str]) -> dict[str, Any]:
    """A form as filled in."""
    return {"kinds": OUTGOING, **{name: given.get(name, "") for name in FIELDS}}


async def show(request: Request, template: str, values: Mapping[str, Any]) -> Answer:
    """The form that selects work; after that, how much it is and the form that acts on it."""
    given = typed(request.query) | dict(values)
    if not request.query.get("look"):
        return Page(template=template, values=given | {"sums": None})
    try:
        return Page(template=template, values=given | await _looked(request, request.query))
    except Invalid as refusal:
        return refused(template, refusal, given | {"sums": None})


async def wrong(request: Request, template: str, refusal: Invalid, values: Mapping[str, Any]) -> Answer:
    """The acting form again: with what was wrong, and the selected work as it is now."""
    given = typed(request.form) | dict(values)
    if any(one["field"] in FIELDS for one in refusal.details["fields"]):
        return refused(template, refusal, given | {"sums": None})
    try:
        return refused(template, refusal, given | await _looked(request, request.form))
    except Invalid as unknown:
        return refused(template, unknown, given | {"sums": None})


def by_kind_and_line(listed: Sequence[Waiting]) -> list[WaitingTotal]:
    """Waiting work per kind, and per line of kinds that have several: (kind,) or (kind, line)."""
    kinds, lines = summed(listed, lambda one: (one.kind,)), summed(listed, lambda one: (one.kind, one.line or ""))
    found = []
    for kind in kinds:
        within = [one for one in lines if one.who[0] == kind.who[0]]
        found += [kind, *within] if len(within) > 1 else within
    return found


async def _looked(request: Request, given: Mapping[str, str]) -> dict[str, Any]:
    async with request.reading() as conn:
        found = await waiting.summary(conn, await selection(conn, given), limit=EVERY)
    sums = summed(found.waiting, lambda one: (one.organization, one.kind))
    return {
        "sums": sums[:NAMED],
        "left_out": len(sums) - len(sums[:NAMED]),
        "total": sum(one.rows for one in sums),
        "leased": sum(one.leased for one in sums),
        "is_more": not found.is_whole or any(one.is_more for one in sums),
    }
