"""Exports: shapes and handlers. The rules are `overview.exports`: a worker writes the file, and whoever asked for it
fetches it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.accounts.api_keys.scopes import ScopeRequired
from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import CreatedAt, Items, Success, Time
from heliograph.base.actor import Actor
from heliograph.base.database.clock import iso, iso_or_none
from heliograph.base.errors import NotFound, Problems
from heliograph.contacts import records, search
from heliograph.contacts.records import MAX_TAG
from heliograph.overview import messages
from heliograph.overview.exports import jobs, kinds
from heliograph.overview.exports.jobs import TooManyExports
from heliograph.overview.exports.kinds import Wanted

Kind = Literal["messages", "contacts", "opt_outs"]
#: The scopes needed to request and to fetch an export, by kind.
NEEDS: dict[str, tuple[str, ...]] = {
    "messages": ("sms:read", "whatsapp:read"),
    "contacts": ("contacts:read",),
    "opt_outs": ("contacts:read",),
}


class CreateExport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """What to export."""

    kind: Annotated[
        Kind,
        Meta(
            description=(
                "`messages` requires the scopes `sms:read` and `whatsapp:read`, the others `contacts:read`. Opt-outs "
                "apply to live and test keys alike."
            )
        ),
    ]
    format: Annotated[Literal["csv", "jsonl"], Meta(description="CSV, or one line of JSON per row.")] = "jsonl"
    date_from: Annotated[
        Annotated[datetime, Meta(tz=True)] | None, Meta(description="Messages accepted from this time on.")
    ] = None
    date_to: Annotated[
        Annotated[datetime, Meta(tz=True)] | None, Meta(description="Messages accepted before this time.")
    ] = None
    tag: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MAX_TAG, extra_json_schema={"pattern": r"\S"})] | None,
        Meta(description="Contacts with this tag."),
    ] = None


class Export(msgspec.Struct):
    """An export and its progress."""

    id: Annotated[UUID, Meta(description="Id of the export.")]
    kind: Annotated[str, Meta(description="What it contains.")]
    format: Annotated[str, Meta(description="`csv` or `jsonl`.")]
    status: Annotated[
        Literal["running", "finished", "stopped", "failed", "erased"],
        Meta(description="It can be read once it is `finished`."),
    ]
    rows: Annotated[int, Meta(description="Rows written so far.")]
    size: Annotated[int, Meta(description="Bytes written so far.")]
    parts: Annotated[int, Meta(description="Number of parts of its content.")]
    is_cut: Annotated[bool, Meta(description="Whether it was cut off at the maximum size of a file.")]
    created_at: CreatedAt
    finished_at: Annotated[Time | None, Meta(description="When it ended.")]
    expires_at: Annotated[Time, Meta(description="When it is deleted.")]


class ExportAnswer(msgspec.Struct):
    """The export in its current state."""

    success: Success
    export: Annotated[Export, Meta(description="The export.")]


class ExportList(msgspec.Struct):
    """The newest 50 exports that this key requested."""

    success: Success
    items: Items[Export]


class ContentQuery(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The part to read."""

    part: Annotated[int, Meta(ge=0, le=1_000_000, description="Number of the part, from 0.")] = 0


class ExportContent(msgspec.Struct, rename="camel"):
    """A part of the file: up to a thousand rows. All parts in order make up the file."""

    success: Success
    part: Annotated[int, Meta(description="Its number.")]
    text: Annotated[str, Meta(description="Its content.")]
    next_part: Annotated[int | None, Meta(description="Number of the next part; null: this was the last.")]


async def list_exports(call: Call) -> ExportList:
    """List exports."""
    return ExportList(True, [_shown(one) for one in await jobs.list_all(call.conn, call.actor, of_everybody=False)])


#: The filters of each kind, by their public names. Any other is refused: it would seem to filter, and would not.
_NARROWED: dict[str, set[str]] = {"messages": {"dateFrom", "dateTo"}, "contacts": {"tag"}}


async def canonical(body: CreateExport) -> CreateExport:
    """The tag as it is stored. Raises Invalid with all errors."""
    wrong, tag = Problems(), None
    given = {"dateFrom": body.date_from, "dateTo": body.date_to, "tag": body.tag}
    for name, value in given.items():
        if value is not None and name not in _NARROWED.get(body.kind, set()):
            wrong.add(name, "exclusive", f"`{name}` does not go with the kind `{body.kind}`")
    with wrong.gathering():
        paging.check_range(body.date_from, body.date_to)
    with wrong.gathering():
        tag = None if body.tag is None else records.tag(body.tag, "tag")
    wrong.report()
    return msgspec.structs.replace(body, tag=tag)


@operation(status=202, canonical=canonical, refusals=(TooManyExports,), while_stopped=True)
async def create_export(call: Call, body: CreateExport) -> ExportAnswer:
    """Export messages, contacts or opt-outs.

    A worker writes the file: messages and contacts of the key's mode, newest first. It is kept for a week, for the key
    that requested it. The event `notice.created` reports that it is ready.
    """
    _demand(call.actor, body.kind)
    id = await jobs.ask(call.conn, call.actor, wanted=_wanted(body))
    return ExportAnswer(True, _shown(await jobs.get(call.conn, call.actor, id=id)))


@operation(refusals=(NotFound,))
async def get_export(call: Call, export_id: UUID) -> ExportAnswer:
    """Get an export."""
    return ExportAnswer(True, _shown(await jobs.get(call.conn, call.actor, id=export_id)))


@operation(refusals=(NotFound,))
async def get_export_content(call: Call, export_id: UUID, query: ContentQuery) -> ExportContent:
    """Read a part of an export.

    404 until it is `finished`.
    """
    found = await jobs.get(call.conn, call.actor, id=export_id)
    _demand(call.actor, found.kind)
    text = await jobs.part(call.conn, call.actor, id=export_id, number=query.part)
    following = query.part + 1
    return ExportContent(True, query.part, text, following if following < found.chunks else None)


@operation(refusals=(NotFound,), while_stopped=True)
async def stop_export(call: Call, export_id: UUID) -> ExportAnswer:
    """Stop an export.

    What has been written is erased. An export that has ended is not changed.
    """
    await jobs.stop(call.conn, call.actor, id=export_id)
    return ExportAnswer(True, _shown(await jobs.get(call.conn, call.actor, id=export_id)))


def _demand(actor: Actor, kind: str) -> None:
    missing = [scope for scope in NEEDS.get(kind, ()) if scope not in actor.scopes]
    if missing:
        raise ScopeRequired(required=missing)


def _wanted(body: CreateExport) -> Wanted:
    if body.kind == "messages":
        filters = messages.Filters(date_from=body.date_from, date_to=body.date_to)
        return kinds.Messages(form=body.format, filters=filters, sees="all")
    if body.kind == "contacts":
        tags = () if body.tag is None else (body.tag,)
        return kinds.Contacts(form=body.format, filters=search.Filters(tags=tags))
    return kinds.OptOuts(form=body.format)


def _shown(one: jobs.Export) -> Export:
    return Export(
        id=one.id,
        kind=one.kind,
        format=one.wanted.form,
        status=one.state,  # type: ignore[arg-type]
        rows=one.rows,
        size=one.size,
        parts=one.chunks,
        is_cut=one.is_cut,
        created_at=iso(one.created_at),
        finished_at=iso_or_none(one.finished_at),
        expires_at=iso(one.ends_at),
    )
