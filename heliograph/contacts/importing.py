"""Importing contacts: a CSV file in, contacts and a file of rejected rows out.

The rule nobody may break: each batch of rows is one idempotent transaction. So an import that was killed is simply run
again: it finds contacts that exist, completes the rest, and creates nobody twice. Memory does not grow with the file;
while the database writes one batch, the next one is read.

It has over 400 lines because everything that decides what becomes of a row is here.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TextIO
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming, phones
from heliograph.base.actor import Actor
from heliograph.base.csv_files import Writer, split, unguarded
from heliograph.base.database.pool import Connection, plan_by_key
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7
from heliograph.base.process import private_files
from heliograph.contacts import records, sheets
from heliograph.contacts.records import MAX_NAME, MAX_TAG, MAX_TAGS, Entry, OnDuplicate
from heliograph.contacts.sheets import Layout, Reader, Row

#: Rows per transaction. Larger ones are no faster, and hold their locks for longer.
BATCH = 5_000

#: A long number as rounded by a spreadsheet: 2.58841E+11, 3E+11.
_is_rounded = re.compile(r"[0-9]+([.,][0-9]+)?[eE]\+?[0-9]+").fullmatch
#: A date as spreadsheets write it, whose digits could be a domestic number: 27.11.2026, 11/27/2026, 2026-11-27.
_is_date = re.compile(
    r"(0?[1-9]|[12][0-9]|3[01])([.-])(0?[1-9]|1[0-2])\2(19|20)[0-9]{2}"
    r"|[0-3]?[0-9]/[0-3]?[0-9]/(19|20)[0-9]{2}"
    r"|(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
).fullmatch
#: Numbers in no known range that a survey of a file lists.
EXAMPLES = 3
#: Columns that the file of rejected rows has before the original ones.
REJECT_COLUMNS = ("row", "reason")
#: Why rows are rejected, most fundamental first; an unreadable row has its own message.
MORE_CELLS = "the row has more cells than the header"
NO_NUMBER = "there is no phone number"
ROUNDED = "a spreadsheet has rounded the phone number: format that column as text"
DATE = "there is a date in place of the phone number"
NO_COUNTRY = "the phone number has no country code: write it with + and the country code, or import with --country"
NO_SUCH = "the phone number is invalid, or has no country code"
LONG_NAME = f"the name has more than {MAX_NAME} characters"
CONTROL_NAME = "the name contains control characters"
LONG_TAG = f"each of `tags` must have 1 to {MAX_TAG} characters"
CONTROL_TAG = "`tags` must not contain control characters"
MANY_TAGS = f"`tags` must list at most {MAX_TAGS} tags"
OVERFULL = f"its contact would have more than {MAX_TAGS} tags"
REASONS = (
    *(sheets.OPEN_QUOTE, sheets.LONG_LINE, MORE_CELLS, NO_NUMBER, ROUNDED, DATE, NO_COUNTRY, NO_SUCH),
    *(LONG_NAME, CONTROL_NAME, LONG_TAG, CONTROL_TAG, MANY_TAGS, OVERFULL),
)


class Options(msgspec.Struct, frozen=True):
    """Options of an import."""

    on_duplicate: OnDuplicate = "update"
    #: Tags for everybody in the file, in addition to those in its rows; as returned by `records.tags`.
    tags: tuple[str, ...] = ()
    #: ISO region of numbers that have no country code; None: they are rejected.
    country: str | None = None
    batch: int = BATCH


class Survey(msgspec.Struct):
    """The numbers in a file, by country of the calling code."""

    rows: int = 0
    countries: Counter[str] = msgspec.field(default_factory=Counter)
    #: Rows with numbers in no range that is in use, and (row, cell, number) of the first of them.
    unused: int = 0
    unused_examples: list[tuple[int, str, str]] = []
    #: Rows without a valid number.
    unread: int = 0

    @property
    def strangers(self) -> list[str]:
        """Countries other than the largest that have over 1 % of the numbers: often a sign that numbers were
        misinterpreted."""
        total = self.countries.total()
        return [country for country, count in self.countries.most_common()[1:] if count > total / 100]

    @property
    def is_doubtful(self) -> bool:
        """Whether over 1 % of the numbers are in no range that is in use."""
        return self.unused > self.countries.total() / 100


class Summary(msgspec.Struct):
    """The result for a file's rows: `rows` is the sum of the other counts."""

    rows: int = 0
    created: int = 0
    updated: int = 0
    #: Existed and are unchanged, including numbers repeated within a batch.
    unchanged: int = 0
    rejected: int = 0
    #: The id with which it can be undone.
    import_id: UUID | None = None


class Progress(msgspec.Struct, frozen=True):
    """How far an import has come, in bytes of its file."""

    position: int
    size: int
    summary: Summary


class Batch(msgspec.Struct):
    """Some rows of a file, converted to the entries to be written."""

    rows: int
    position: int
    #: By number; each with the row that it came from, the last one if several were merged.
    entries: dict[str, tuple[Entry, Row]]
    rejected: list[tuple[Row, str]]


async def survey(path: Path, layout: Layout, options: Options) -> Survey:
    """Count the numbers in a file by country, without writing anything."""
    return await asyncio.to_thread(_survey, path, layout, options)


def _survey(path: Path, layout: Layout, options: Options) -> Survey:
    found = Survey()
    reader = Reader(path, layout)
    phone = layout.fields["phone"]
    try:
        while rows := reader.take(options.batch):
            for row in rows:
                found.rows += 1
                cell = row.cells[phone] if phone < len(row.cells) else ""
                try:
                    number = read_number(cell, options.country)
                except Invalid:
                    found.unread += 1
                    continue
                found.countries[phones.country(number)] += 1
                if not phones.is_valid(number):
                    found.unused += 1
                    if len(found.unused_examples) < EXAMPLES:
                        found.unused_examples.append((row.number, cell, number))
    finally:
        reader.close()
    return found


UNDONE = ("import", "undone", "somebody is undoing this import: nothing more of the file is imported")
BEGIN = "INSERT INTO contact_imports (organization_id, id, file, started_at, mode) VALUES ($1, $2, $3, now(), $4)"
ADVANCE = """
UPDATE contact_imports SET position = $3, rows = rows + $4, created = created + $5, updated = updated + $6,
                           rejected = rejected + $7, unchanged = unchanged + $4 - $5 - $6 - $7
 WHERE organization_id = $1 AND id = $2 AND state = 'running'
"""
END = """
UPDATE contact_imports SET finished_at = now(), state = 'finished'
 WHERE organization_id = $1 AND id = $2 AND state = 'running'
"""


async def run(
    conn: Connection,
    actor: Actor,
    *,
    path: Path,
    layout: Layout,
    rejects: Path,
    options: Options,
    on_progress: Callable[[Progress], None],
) -> Summary:
    """Import a file analysed by `sheets.layout`. `conn` plans by key from then on.

    `rejects` is overwritten, and removed if no row was rejected. Raises Invalid: it is the imported file, or UNDONE.
    """
    if rejects.resolve() == path.resolve():
        raise Invalid(("rejects", "format", "the file for rejected rows must not be the imported file"))
    await plan_by_key(conn)
    rejects.unlink(missing_ok=True)
    id = uuid7()
    summary = Summary(import_id=id)
    async with conn.transaction():
        await conn.execute(BEGIN, actor.organization_id, summary.import_id, path.name, actor.mode)
        told = {"state": "begun", "tags": options.tags, "on_duplicate": options.on_duplicate}
        await audit.record(conn, actor, "contacts.imported", object_id=id, name=path.name, after=told)
    reader = Reader(path, layout)
    reading: asyncio.Task[Batch]

    def read_next() -> None:
        nonlocal reading
        reading = asyncio.create_task(asyncio.to_thread(_next_batch, reader, layout, options))

    read_next()
    sink = _Rejects(rejects, layout)
    try:
        while (batch := await reading).rows:
            async with conn.transaction():
                result = await write(conn, actor, id=id, batch=batch, options=options, meanwhile=read_next)
                await advance(conn, actor, id=id, batch=batch, result=result)
            sink.add(result.rejected)
            summary.rows += batch.rows
            summary.created += result.created
            summary.updated += result.updated
            summary.rejected += len(result.rejected)
            summary.unchanged += batch.rows - result.created - result.updated - len(result.rejected)
            on_progress(Progress(batch.position, reader.size, summary))
    finally:
        await asyncio.wait([reading])
        reader.close()
        sink.close()
    async with conn.transaction():
        if await conn.execute(END, actor.organization_id, id) == "UPDATE 0":
            raise Invalid(UNDONE)
        done = {"state": "finished", "rows": summary.rows, "created": summary.created, "updated": summary.updated}
        done["rejected"] = summary.rejected
        await audit.record(conn, actor, "contacts.imported", object_id=id, name=path.name, before={}, after=done)
    return summary


# Locked in the order in which they are written, after waiting for concurrent changes. Each is looked up separately: a
# plan for `phone = ANY`, cached while there were no contacts, read all contacts for each batch.
IMAGES = """
INSERT INTO contact_import_images (organization_id, import_id, batch, contact_id, phone, name, first_name, last_name,
                                   tags, updated_at)
SELECT $1, $2, $3, held.*
  FROM (SELECT phone FROM unnest($4::text[]) AS given (phone) ORDER BY phone) given CROSS JOIN LATERAL (
       SELECT id, phone, name, first_name, last_name, tags, updated_at FROM contacts
        WHERE organization_id = $1 AND phone = given.phone AND mode = $5 FOR UPDATE) held
RETURNING contact_id
"""
# Not <> ALL: with a parameter, each image is compared with every id.
SAME = """
DELETE FROM contact_import_images
 WHERE organization_id = $1 AND import_id = $2 AND batch = $3 AND contact_id NOT IN (SELECT unnest($4::uuid[]))
"""
LISTED = """
SELECT ARRAY(SELECT held.id FROM unnest($3::text[]) AS given (phone) CROSS JOIN LATERAL (
             SELECT id FROM contacts WHERE organization_id = $1 AND phone = given.phone AND mode = $2 LIMIT 1) held)
"""
NEXT_BATCH = """
SELECT coalesce(max(batch), 0) + 1 FROM contact_import_batches WHERE organization_id = $1 AND import_id = $2
"""
BATCHED = """
INSERT INTO contact_import_batches (organization_id, import_id, batch, written_at, created, people)
VALUES ($1, $2, $3, $4, $5, $6)
"""


class Result(msgspec.Struct, frozen=True):
    """The result of a batch; rows that are not counted existed and are unchanged."""

    created: int
    updated: int
    #: Rows with their reasons, in the order of the file.
    rejected: list[tuple[Row, str]]


async def write(
    conn: Connection,
    actor: Actor,
    *,
    id: UUID,
    batch: Batch,
    options: Options,
    meanwhile: Callable[[], object] = lambda: None,
) -> Result:
    """Write a batch of the import `id`, and the data needed to undo it, in the caller's transaction, which holds the
    import. Rows of the file and corrected ones are numbered in the order in which they are written.

    `meanwhile`: starts a task, which begins once the rows are on their way to the database: a thread that ran before
    would take the interpreter from what prepares them.
    """
    entries = [entry for entry, _ in batch.entries.values()]
    where = (actor.organization_id, id, await conn.fetchval(NEXT_BATCH, actor.organization_id, id))
    known: set[UUID] = set()
    if options.on_duplicate == "update":
        images = await conn.fetch(IMAGES, *where, list(batch.entries), actor.mode)
        known = {image["contact_id"] for image in images}
    meanwhile()
    written = await records.create_many(conn, actor, entries=entries, on_duplicate=options.on_duplicate)
    if known:
        await conn.execute(SAME, *where, written.updated_ids)
    listed = [*written.created_ids, *known.union(written.updated_ids)]
    if len(listed) < len(entries):  # some exist and were not locked: they were skipped, or created meanwhile
        listed = await conn.fetchval(LISTED, actor.organization_id, actor.mode, list(batch.entries))
    await conn.execute(BATCHED, *where, written.at, written.created_ids, listed)
    rejected = batch.rejected + [(batch.entries[number][1], OVERFULL) for number in written.overfull]
    rejected.sort(key=lambda each: each[0].number)
    return Result(written.created, written.updated, rejected)


async def advance(conn: Connection, actor: Actor, *, id: UUID, batch: Batch, result: Result) -> None:
    """Count a batch in its import's record, in the transaction that wrote it. Raises Invalid if it is being undone."""
    counts = batch.rows, result.created, result.updated, len(result.rejected)
    if await conn.execute(ADVANCE, actor.organization_id, id, batch.position, *counts) == "UPDATE 0":
        raise Invalid(UNDONE)


class _Rejects:
    """The file of rejected rows, created with its first one. It has the layout of the original, so that its rows can be
    corrected and imported."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._path, self._layout = path, layout
        self._file: TextIO | None = None
        self._writer: Writer

    def add(self, rejected: list[tuple[Row, str]]) -> None:
        if rejected and self._file is None:
            self._file = private_files.open_text(self._path, encoding="utf-8-sig")
            columns = [*REJECT_COLUMNS, *self._layout.columns]
            self._writer = Writer(self._file, columns, delimiter=self._layout.delimiter)
        for row, reason in rejected:
            self._writer.row([str(row.number), reason, *row.cells])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _next_batch(reader: Reader, layout: Layout, options: Options) -> Batch:
    """The next rows as entries. Runs in a thread."""
    return batch_of(reader.take(options.batch), layout, options, reader.position)


def batch_of(rows: list[Row], layout: Layout, options: Options, position: int) -> Batch:
    """Rows as entries; repeated numbers are merged into the first. `position`: how far the file has been read."""
    entries: dict[str, tuple[Entry, Row]] = {}
    rejected: list[tuple[Row, str]] = []
    # A field without a column refers to the empty cell appended to each row.
    width = len(layout.columns)
    phone, name, first, last, tags = (layout.fields.get(field, width) for field in sheets.FIELDS)
    for row in rows:
        cells = row.cells
        if len(cells) > width and any(cells[width:]):
            row.problem = MORE_CELLS
        if row.problem:
            rejected.append((row, row.problem))
            continue
        cells = [*cells[:width], *[""] * (width + 1 - len(cells[:width]))]
        try:
            entry = _entry(cells[phone], cells[name], cells[first], cells[last], cells[tags], options)
            known = entries.get(entry.phone)
            if known is None:
                entries[entry.phone] = (entry, row)
            elif options.on_duplicate == "update":
                entries[entry.phone] = (_joined(known[0], entry), row)
        except Invalid as refusal:
            rejected.append((row, refusal.message))
    return Batch(len(rows), position, entries, rejected)


def _entry(phone: str, name: str, first: str, last: str, tags: str, options: Options) -> Entry:
    """Parse a row. Raises Invalid, whose message is the reason for its rejection."""
    number = read_number(phone, options.country)
    name, first, last = _name(name), _name(first), _name(last)
    whole = name or records.full_name(first, last)
    if max(len(whole or ""), len(first), len(last)) > MAX_NAME:
        raise Invalid(("name", "length", LONG_NAME))
    read_tags = _tags if len(tags) <= 256 else _tags.__wrapped__
    all_tags = read_tags(tags, options.tags) if tags else options.tags
    return Entry(number, whole, first or None, last or None, all_tags)


def read_number(cell: str, country: str | None) -> str:
    """The phone number in a cell. `country`: as in `Options`. Raises Invalid, whose message is the reason."""
    text = cell.strip()
    if _is_date(text):
        raise Invalid(("phone", "pattern", DATE))
    if not text.endswith(".0") and (number := phones.read(text, region=country)):
        return number
    text = unguarded(text).removeprefix("'").removesuffix(".0")
    if not text:
        raise Invalid(("phone", "required", NO_NUMBER))
    if _is_rounded(text):
        raise Invalid(("phone", "pattern", ROUNDED))
    if number := phones.read(text, region=country):
        return number
    if country is None and phones.normalize(text) is not None:
        raise Invalid(("phone", "country", NO_COUNTRY))
    raise Invalid(("phone", "pattern", NO_SUCH))


def _name(cell: str) -> str:
    if not cell:
        return cell
    name = naming.composed(naming.bare(unguarded(" ".join(cell.split()))), longest=MAX_NAME)
    if not naming.is_plain(name):
        raise Invalid(("name", "pattern", CONTROL_NAME))
    return name if naming.is_readable(name) else ""


# Most rows of a file have the same tags as many others. Only short cells are cached: one may have a million characters.
@lru_cache(maxsize=4096)
def _tags(cell: str, more: tuple[str, ...]) -> tuple[str, ...]:
    return records.tags([*filter(naming.is_readable, split(cell, is_cell=True)), *more])


def _joined(earlier: Entry, later: Entry) -> Entry:
    """Merge two rows into one contact, as if the later one had been written after the earlier one."""
    named = later if later.name is not None else earlier
    tags = records.tags((*earlier.tags, *later.tags))
    return Entry(earlier.phone, named.name, named.first_name, named.last_name, tags)
