"""Exports: requested files, their progress, and their downloads."""

from __future__ import annotations

from typing import Any

from heliograph.audit import reading as audit
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.contacts import search
from heliograph.dashboard import visibility
from heliograph.dashboard.exporting import HERE, separator
from heliograph.overview import messages
from heliograph.overview.exports import jobs, kinds
from heliograph.overview.exports.jobs import Export, TooManyExports
from heliograph.overview.exports.kinds import Messages
from heliograph.pages.answers import Answer, Page, Redirect, Stream
from heliograph.pages.requests import Request
from heliograph.people.roles import AUDIT, EXPORT, USAGE

#: The scope and permission required to request and to download a file, by kind.
NEEDS: dict[str, tuple[str | None, str | None]] = {
    "messages": ("sms:read", None),
    "contacts": ("contacts:read", EXPORT),
    "audit": (None, AUDIT),
    "usage": (None, USAGE),
    "opt_outs": ("contacts:write", EXPORT),
    "rejects": ("contacts:write", None),
    "skipped": ("campaigns:write", EXPORT),
    "cancel": ("sms:send", None),
    "tag": ("contacts:write", None),
}
KINDS = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl; charset=utf-8",
    "json": "application/json; charset=utf-8",
}
#: What a reader sees of messages, in ascending order.
LEVELS = ("none", "own", "all")


async def show(request: Request) -> Answer:
    """The person's files; for readers of the audit log also everybody else's, without downloads."""
    sees_all = request.may(permission=AUDIT)
    async with request.reading() as conn:
        listed = await jobs.list_all(conn, request.acting("live"), of_everybody=sees_all)
    values = {
        "listed": listed,
        "own": {one.id for one in listed if one.user_id == request.person.user_id},
        "fetchable": {one.id for one in listed if one.state == "finished" and _may_fetch(request, one)},
        "sees_all": sees_all,
        "days": jobs.KEPT.days,
    }
    template = "organization/exports_rows.html" if request.is_fragment else "organization/exports.html"
    return Page(template=template, values=values)


async def everything(request: Request) -> Answer:
    """Export everything that the organization has: all files, or none."""
    actor = request.acting("live")
    common: dict[str, Any] = {"form": "csv", "delimiter": separator(request)}
    wanted = (
        kinds.Messages(filters=messages.Filters(), sees="all", **common),
        kinds.Contacts(filters=search.Filters(), **common),
        kinds.OptOuts(**common),
        kinds.Audit(filters=audit.Filter(organization_id=actor.organization_id), **common),
    )

    async def work(conn: Connection) -> str:
        async with conn.transaction():
            for one in wanted:
                await jobs.ask(conn, actor, wanted=one)
        return ""

    try:
        await request.once(work)
    except TooManyExports as refusal:
        return Redirect(location=request.to(HERE), notice=request.text(refusal.message), is_refusal=True)
    return Redirect(location=request.to(HERE))


async def fetch(request: Request) -> Answer:
    """Download the file. Permission is checked again, since roles may have changed since the request."""
    actor = request.acting("live")
    async with request.writing() as conn:
        found = await jobs.get(conn, actor, id=request.id())
        if not _may_fetch(request, found):
            raise NotFound
        found = await jobs.hand_out(conn, actor, id=found.id)
    parts = jobs.pieces(request.reading_in_turn, actor, export=found)
    return Stream(name=found.file, kind=KINDS[found.wanted.form], parts=parts)


async def stop(request: Request) -> Answer:
    """Stop writing the file."""
    id = request.id()

    async def work(conn: Connection) -> str:
        await jobs.stop(conn, request.acting("live"), id=id)
        return ""

    await request.once(work)
    return Redirect(location=request.to(HERE))


def _may_fetch(request: Request, export: Export) -> bool:
    scope, permission = NEEDS[export.kind]
    if export.user_id != request.person.user_id or not request.may(scope, permission, mode=export.mode):
        return False
    wanted = export.wanted
    return not isinstance(wanted, Messages) or LEVELS.index(visibility.whose(request)) >= LEVELS.index(wanted.sees)
