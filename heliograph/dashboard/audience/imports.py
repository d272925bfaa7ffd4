"""D6c Imports: a file is uploaded or pasted, read, mapped, checked and run. Each step has an address, so it can be
left and resumed; rejected rows can be corrected, and the whole import can be undone for a day.

It has over 400 lines because the five steps of one form share its state.
"""

from __future__ import annotations

import codecs
from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts import organizations
from heliograph.base import csv_files, phones
from heliograph.base.database import clock
from heliograph.base.errors import Invalid
from heliograph.campaigns import record
from heliograph.contacts import importing, records, sheets
from heliograph.contacts.imports import corrections, drafts
from heliograph.contacts.imports.drafts import Draft, ImportMoved
from heliograph.contacts.sheets import FIELDS, Layout
from heliograph.dashboard import exporting
from heliograph.dashboard.audience import lists, words
from heliograph.overview.exports.kinds import Rejects
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request
from heliograph.people import roles
from heliograph.people.roles import RoleRequired

WRITE = "contacts:write"
HERE = "/contacts/imports"
#: Delimiters to choose from.
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
#: Rows shown from a file, and sample values per column.
ROWS, SAMPLES = 10, 3
#: Imports among which one is looked for that has to be undone first.
LATER = 50


class Column(msgspec.Struct, frozen=True):
    """A column of the file, sample values, and the field that it is mapped to."""

    index: int
    name: str
    samples: list[str]
    field: str


async def show_list(request: Request) -> Answer:
    """Imports of the mode, newest first."""
    size = pagination.size(request)
    async with request.reading() as conn:
        found = await drafts.list_page(conn, request.actor, after=pagination.after(request), limit=size + 1)
    rows = found[:size]
    values = {
        "rows": rows,
        "may_write": request.may(WRITE),
        "pages": pagination.pages(request, rows[-1].id if len(found) > len(rows) else None),
    }
    return Page(template="audience/imports.html", values=values)


async def show_upload(request: Request) -> Answer:
    """Step 1: upload a file, or paste from a spreadsheet."""
    return Page(template="audience/import_upload.html", values=_upload_values(request))


async def upload(request: Request) -> Answer:
    """Store the file in pieces as it arrives."""
    given, actor = request.upload, request.actor
    kind = "opt_outs" if request.form.get("kind") == "opt_outs" else "contacts"
    _demand(request, kind)
    id: UUID | None = None
    size, number, start = 0, 0, b""
    decoder = codecs.getincrementaldecoder("utf-8")()
    is_utf8 = True
    try:
        async for chunk in given.chunks(drafts.CHUNK):
            async with request.writing() as conn:
                if id is None:
                    id = await drafts.begin(conn, actor, file=given.name or request.text("pasted"), kind=kind)
                await drafts.put(conn, actor, id=id, number=number, chunk=chunk)
            start = start or chunk[:4]
            size, number = size + len(chunk), number + 1
            try:
                is_utf8 = is_utf8 and decoder.decode(chunk) is not None
            except UnicodeDecodeError:
                is_utf8 = False
        if id is None:
            raise Invalid(("file", "required", "Choose a file that is not empty, or paste something."))
        async with request.writing() as conn:
            await drafts.uploaded(conn, actor, id=id, size=size, encoding=sheets.encoding_of(start, is_utf8=is_utf8))
    except Invalid as refusal:
        await _give_up(request, id)
        await given.drain(2 * drafts.LONGEST)
        wrong = refusal.details["fields"][0]
        told = Invalid(("file", wrong["issue"], words.IMPORT_FORM.get(wrong["issue"], wrong["message"])))
        return refused("audience/import_upload.html", told, _upload_values(request))
    except BaseException:
        await _give_up(request, id)
        raise
    return Redirect(location=request.to(f"{HERE}/{id}/read"))


async def show_read(request: Request) -> Answer:
    """Step 2: how the file is read. The query can override it; the rows shown follow."""
    async with request.reading() as conn:
        draft = await drafts.get(conn, request.actor, id=request.id())
        if draft.state not in ("reading", "checked"):
            return _now(request, draft)
        head = await drafts.head(conn, request.actor, id=draft.id)
    return Page(template="audience/import_read.html", values=_read_values(draft, head, request.query))


async def read(request: Request) -> Answer:
    """Save how the file is read."""
    id = request.id()
    try:
        async with request.writing() as conn:
            draft = await drafts.get(conn, request.actor, id=id)
            head = await drafts.head(conn, request.actor, id=id)
            layout, problem = _layout(draft, head, request.form)
            if problem:
                values = _read_values(draft, head, request.form)
                return Page(template="audience/import_read.html", values=values, status=422)
            await drafts.read_as(conn, request.actor, id=id, layout=layout)
    except ImportMoved:
        return await _moved(request, id)
    return Redirect(location=request.to(f"{HERE}/{id}/map"))


async def show_map(request: Request) -> Answer:
    """Step 3: what the columns are. The query can override it; the numbers shown follow."""
    async with request.reading() as conn:
        draft = await drafts.get(conn, request.actor, id=request.id())
        if draft.state not in ("reading", "checked"):
            return _now(request, draft)
        head = await drafts.head(conn, request.actor, id=draft.id)
        home = (await organizations.get(conn, id=request.actor.organization_id)).country
    typed = dict(request.query) if "on_duplicate" in request.query else _typed(draft, home)
    return Page(template="audience/import_map.html", values=_map_values(request, draft, head, typed))


async def map_columns(request: Request) -> Answer:
    """Save what the columns are, and have the file checked."""
    id, typed = request.id(), request.form
    try:
        async with request.writing() as conn:
            draft = await drafts.get(conn, request.actor, id=id)
            try:
                country = typed.get("country") or None
                if country is not None and country not in phones.REGIONS.values():
                    raise Invalid(("country", "enum", "Choose a country."))
                tags = _tags(typed.get("tags", ""))
                await drafts.check(
                    conn,
                    request.actor,
                    id=id,
                    fields=_fields(draft, typed),
                    country=country,
                    tags=tags,
                    on_duplicate="skip" if typed.get("on_duplicate") == "skip" else "update",
                )
            except Invalid as refusal:
                head = await drafts.head(conn, request.actor, id=id)
                values = _map_values(request, draft, head, typed)
                return refused("audience/import_map.html", refusal, values)
    except ImportMoved:
        return await _moved(request, id)
    return Redirect(location=request.to(f"{HERE}/{id}/check"))


async def show_check(request: Request) -> Answer:
    """Step 4: what the file would do."""
    async with request.reading() as conn:
        draft = await drafts.get(conn, request.actor, id=request.id())
    if draft.state not in ("checking", "checked"):
        return _now(request, draft)
    return _checked(request, draft)


async def run(request: Request) -> Answer:
    """Import a checked file, or continue a stopped import."""
    id = request.id()
    try:
        async with request.writing() as conn:
            confirmed = [name for name in words.CONFIRM if request.form.get(name) == "yes"]
            _demand(request, (await drafts.get(conn, request.actor, id=id)).kind)
            await drafts.run(conn, request.actor, id=id, confirmed=confirmed)
    except Invalid as refusal:
        async with request.reading() as conn:
            draft = await drafts.get(conn, request.actor, id=id)
        wrong = Invalid(
            *((one["field"], one["issue"], words.CONFIRM[one["field"]]) for one in refusal.details["fields"])
        )
        return _checked(request, draft, wrong)
    except ImportMoved:
        return await _moved(request, id)
    return Redirect(location=request.to(f"{HERE}/{id}"))


async def show(request: Request) -> Answer:
    """Step 5: progress and result; an import that is not that far yet shows its current step."""
    async with request.reading() as conn:
        draft = await drafts.get(conn, request.actor, id=request.id())
        has_file = draft.state == "stopped" and await drafts.has_file(conn, request.actor, id=draft.id)
    if draft.state in drafts.UNSTARTED:
        return _now(request, draft)
    values = {
        "draft": draft,
        "has_file": has_file,
        "pace": draft.pace(clock.now()),
        "may_write": request.may(WRITE),
        "mends": draft.kind == "contacts",
    }
    return Page(template="audience/import_live.html" if request.is_fragment else "audience/import.html", values=values)


async def stop(request: Request) -> Answer:
    """Stop the import."""
    return await _act(request, drafts.stop)


async def show_undo(request: Request) -> Answer:
    """What undoing would take back, in numbers; the import's page if it can no longer be undone."""
    async with request.reading() as conn:
        draft = await drafts.get(conn, request.actor, id=request.id())
        later = await drafts.list_page(conn, request.actor, after=None, limit=LATER)
        waiting = await record.waiting_for_import(conn, request.actor, imported=draft.id)
    if not draft.can_undo:
        return Redirect(location=request.to(f"{HERE}/{draft.id}"))
    mends, ended = draft.kind == "contacts", draft.finished_at or draft.started_at
    # What the latest of these changed cannot be restored below it, not even by undoing this one again.
    changed = [one for one in later if one.kind == draft.kind and one.can_undo and one.updated]
    above = next((one for one in changed if (one.finished_at or one.started_at) > ended), None) if mends else None
    values = {"draft": draft, "mends": mends, "above": above, "waiting": waiting}
    return Page(template="audience/import_undo.html", values=values)


async def undo(request: Request) -> Answer:
    """Undo the import."""
    return await _act(request, drafts.undo)


async def back(request: Request) -> Answer:
    """Go back from the check to the columns."""
    id = request.id()
    try:
        async with request.writing() as conn:
            await drafts.back(conn, request.actor, id=id)
    except ImportMoved:
        return await _moved(request, id)
    return Redirect(location=request.to(f"{HERE}/{id}/map"))


async def discard(request: Request) -> Answer:
    """Delete a file from which nothing was imported."""
    async with request.writing() as conn:
        await drafts.discard(conn, request.actor, id=request.id())
    return Redirect(location=request.to(HERE), notice=request.text("The file is erased."))


async def export_rejects(request: Request) -> Answer:
    """Export the rejected rows in the format of the original file."""
    async with request.reading() as conn:
        draft = await drafts.get(conn, request.actor, id=request.id())
    delimiter = draft.delimiter or exporting.separator(request)
    return await exporting.ask(request, request.actor, Rejects(form="csv", delimiter=delimiter, import_id=draft.id))


async def show_mend(request: Request) -> Answer:
    """Rejected rows as an editable table."""
    return Page(template="audience/import_mend.html", values=await _mend_values(request))


async def mend(request: Request) -> Answer:
    """Import corrected rows; those that are still wrong stay."""
    id = request.id()
    cells: dict[int, dict[str, str]] = {}
    for name, value in request.form.items():
        kind, _, rest = name.partition("-")
        row, _, field = rest.partition("-")
        if kind == "cell" and row.isdecimal() and len(row) < 10 and field in FIELDS:
            cells.setdefault(int(row), {})[field] = value

    async def work(conn: Any) -> dict[str, int]:
        done = await corrections.mend(conn, request.actor, id=id, cells=cells)
        return {"imported": done.imported, "left": done.left}

    try:
        done = await request.once(work)
    except ImportMoved:
        return await _moved(request, id)
    there = request.to(f"{HERE}/{id}" + ("/mend" if done["left"] else ""))
    if not done["imported"]:
        said = request.text("No row was imported: none of them is right yet.")
        return Redirect(location=there, notice=said, is_refusal=True)
    said = request.locale.count("%(num)s row imported.", "%(num)s rows imported.", done["imported"])
    return Redirect(location=there, notice=said)


def _upload_values(request: Request) -> dict[str, Any]:
    asked = request.query.get("kind") or getattr(request, "form", {}).get("kind")
    return {"kind": "opt_outs" if asked == "opt_outs" else "contacts"}


async def _give_up(request: Request, id: UUID | None) -> None:
    if id is not None:
        async with request.writing() as conn:
            await drafts.discard(conn, request.actor, id=id)


def _layout(draft: Draft, head: bytes, given: Any) -> tuple[Layout, str]:
    """(how to read the file according to the form, what is wrong with that)"""
    encoding = given.get("encoding", draft.encoding)
    delimiter = next((one for one, name in DELIMITERS.items() if name == given.get("delimiter")), draft.delimiter)
    header = {"yes": True, "no": False}.get(given.get("header", ""), draft.has_header)
    encoding = encoding if encoding in words.FILE_ENCODINGS else draft.encoding or "utf-8"
    try:
        return sheets.detect_layout(head, encoding=encoding, delimiter=delimiter, has_header=header), ""
    except Invalid:
        return draft.layout, "The file cannot be read like this."


def _read_values(draft: Draft, head: bytes, given: Any) -> dict[str, Any]:
    layout, problem = _layout(draft, head, given)
    return {
        "draft": draft,
        "layout": layout,
        "problem": problem,
        "rows": drafts.sample(head, layout, ROWS),
        "encodings": words.FILE_ENCODINGS,
        "delimiters": DELIMITERS,
        "width": len(layout.columns),
    }


def _typed(draft: Draft, home: str | None) -> dict[str, str]:
    """The form's initial values: guessed or chosen before; the country defaults to the organization's."""
    known = {index: field for field, index in draft.fields.items()}
    typed = {f"column-{at}": known.get(at, "") for at in range(len(draft.columns))}
    return typed | {
        "country": draft.country or home or "",
        "tags": csv_files.joined(draft.tags),
        "on_duplicate": draft.on_duplicate,
    }


def _fields(draft: Draft, typed: Any) -> dict[str, int]:
    """Column by field. Raises Invalid if two columns are mapped to one field."""
    found: dict[str, int] = {}
    for at in range(len(draft.columns)):
        field = typed.get(f"column-{at}", "")
        if field in FIELDS and (draft.kind == "contacts" or field == "phone"):
            if field in found:
                raise Invalid((f"column-{at}", "double", "Two columns are mapped to the same field."))
            found[field] = at
    if "phone" not in found:
        raise Invalid(("column-0", "required", "Choose the column with the phone numbers."))
    return found


def _tags(text: str) -> tuple[str, ...]:
    try:
        return records.tags(csv_files.split(text))
    except Invalid:
        raise Invalid(("tags", "length", words.CONTACT_FORM["tags"])) from None


def _map_values(request: Request, draft: Draft, head: bytes, typed: Any) -> dict[str, Any]:
    rows = drafts.sample(head, draft.layout, 200)
    columns = []
    for at, name in enumerate(draft.columns):
        samples = [row[at] for row in rows if at < len(row) and row[at].strip()][:SAMPLES]
        columns.append(Column(at, name, samples, typed.get(f"column-{at}", "")))
    phone = next((one.index for one in columns if one.field == "phone"), None)
    country = typed.get("country") or None
    cells, national = [], []
    if phone is not None:
        cells = [cell for row in rows if phone < len(row) and (cell := row[phone].strip())]
        written = [cell for cell in cells if not phones.is_international(cell.lstrip("'"))]
        known = country if country in phones.REGIONS.values() else None
        national = [(cell, _read(cell, known)) for cell in written[:SAMPLES]]
    return {
        "draft": draft,
        "columns": columns,
        "fields_offered": words.FIELDS if draft.kind == "contacts" else {"phone": words.FIELDS["phone"]},
        "typed": {"country": "", "tags": "", "on_duplicate": "update", **typed},
        "countries": lists.countries(request),
        "national": national,
        "has_numbers": bool(cells),
    }


def _read(cell: str, country: str | None) -> str:
    """The number that the import would take from a cell; "": none."""
    try:
        return importing.read_number(cell, country)
    except Invalid:
        return ""


def _checked(request: Request, draft: Draft, refusal: Invalid | None = None) -> Answer:
    values = {"draft": draft, "reasons": words.IMPORT_REASONS, "fields_offered": words.FIELDS}
    template = "audience/import_check_live.html" if request.is_fragment else "audience/import_check.html"
    return Page(template=template, values=values, status=422 if refusal else 200, refusal=refusal)


async def _mend_values(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        draft = await drafts.get(conn, request.actor, id=request.id())
        found = await corrections.rejects(conn, request.actor, id=draft.id, limit=corrections.MOST + 1)
    order = [field for field in FIELDS if field in draft.fields]
    # A browser takes line breaks out of a field, which would join the words on either side of one.
    rows = [
        (
            one,
            [
                (field, " ".join(one.cells[at].split()) if (at := draft.fields[field]) < len(one.cells) else "")
                for field in order
            ],
        )
        for one in found[: corrections.MOST]
    ]
    return {
        "draft": draft,
        "rows": rows,
        "order": order,
        "fields_offered": words.FIELDS,
        "reasons": words.IMPORT_REASONS,
        "is_more": len(found) > corrections.MOST,
    }


async def _act(request: Request, act: Any) -> Answer:
    id = request.id()
    try:
        async with request.writing() as conn:
            _demand(request, (await drafts.get(conn, request.actor, id=id)).kind)
            await act(conn, request.actor, id=id)
    except ImportMoved:
        return await _moved(request, id)
    return Redirect(location=request.to(f"{HERE}/{id}"))


def _demand(request: Request, kind: str) -> None:
    """Opt-outs apply to both modes, so an import of them is for those who may change live ones. Raises RoleRequired."""
    if kind == "opt_outs" and not request.may(WRITE, mode="live"):
        raise RoleRequired(required=roles.holders(scope=WRITE, mode="live"))


async def _moved(request: Request, id: UUID) -> Answer:
    """Somebody else has changed the import: redirect to its current page, which says so."""
    async with request.reading() as conn:
        await drafts.get(conn, request.actor, id=id)
    return Redirect(location=request.to(f"{HERE}/{id}"), notice=request.text(ImportMoved().message), is_refusal=True)


def _now(request: Request, draft: Draft) -> Answer:
    """Go to the import's current page."""
    step = {"uploading": "/read", "reading": "/read", "checking": "/check", "checked": "/check"}.get(draft.state, "")
    if draft.state == "uploading":
        return Redirect(location=request.to(HERE))
    return Redirect(location=request.to(f"{HERE}/{draft.id}{step}"))
