"""What can be exported, and how a page of it becomes lines of a file.

What is wanted is stored as JSON with the export, so that any worker can continue it. The rule nobody may break: a page
begins where the previous one ended, and contains nothing that its reader may not see in a list.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import date, datetime
from typing import Literal
from uuid import UUID

import msgspec

from heliograph.audit import reading as audit
from heliograph.base.actor import Actor
from heliograph.base.csv_files import Writer
from heliograph.base.database.clock import iso, iso_or_none
from heliograph.base.database.pool import Connection
from heliograph.consent import exporting as opt_outs
from heliograph.consent import optouts, skipped
from heliograph.contacts import exporting as contacts
from heliograph.contacts import search
from heliograph.contacts.importing import REJECT_COLUMNS
from heliograph.contacts.imports import corrections, drafts
from heliograph.overview import messages, usage
from heliograph.overview.exports import references
from heliograph.overview.messages import Message

#: Rows per page.
PAGE = 1_000
Form = Literal["csv", "jsonl", "json"]


class _Wanted(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    form: Form
    #: Separates the cells of a CSV file.
    delimiter: str = ","


class Messages(_Wanted, frozen=True, kw_only=True, tag="messages"):
    """Messages that match a list's filters."""

    filters: messages.Filters
    #: Which numbers the reader sees whole: all, those of messages they sent themselves, or none.
    sees: Literal["all", "own", "none"]
    #: Only these selected ones, regardless of the filters.
    ids: tuple[UUID, ...] = ()

    @property
    def name(self) -> str:
        """The file's name without its extension."""
        return "messages"


class Contacts(_Wanted, frozen=True, kw_only=True, tag="contacts"):
    """Contacts that match a list's filters."""

    filters: search.Filters
    #: Only these selected ones, regardless of the filters.
    ids: tuple[UUID, ...] = ()

    @property
    def name(self) -> str:
        """The file's name without its extension."""
        return "contacts"


class Audit(_Wanted, frozen=True, kw_only=True, tag="audit"):
    """Entries of the audit log, as customers read them."""

    filters: audit.Filter

    @property
    def name(self) -> str:
        """The file's name without its extension."""
        return "audit-log"


class Usage(_Wanted, frozen=True, kw_only=True, tag="usage"):
    """The bill of a month."""

    month: date
    by: str

    @property
    def name(self) -> str:
        """The file's name without its extension."""
        return f"usage-{self.month:%Y-%m}-by-{self.by.replace(':', '-')}"


class OptOuts(_Wanted, frozen=True, kw_only=True, tag="opt_outs"):
    """All opt-outs of the organization."""

    @property
    def name(self) -> str:
        """The file's name without its extension."""
        return "opt-outs"


class Rejects(_Wanted, frozen=True, kw_only=True, tag="rejects"):
    """Rows that an import rejected, in the form of the original file, which can be corrected and imported again."""

    import_id: UUID

    @property
    def name(self) -> str:
        """The file's name without its extension."""
        return f"rejects-{str(self.import_id)[-8:]}"


class Skipped(_Wanted, frozen=True, kw_only=True, tag="skipped"):
    """Who a campaign skipped, and why."""

    campaign_id: UUID
    reason: str
    #: Which numbers the reader sees whole; skipped messages have no sender, so in effect all or none.
    sees: Literal["all", "own", "none"]

    @property
    def name(self) -> str:
        """The file's name without its extension."""
        return f"skipped-{str(self.campaign_id)[-8:]}"


class Cancel(_Wanted, frozen=True, kw_only=True, tag="cancel"):
    """Cancels messages that match a list's filters and that no supplier has yet (`changes`)."""

    filters: messages.Filters

    @property
    def name(self) -> str:
        """The file's name without its extension."""
        return "canceled-messages"


class Tag(_Wanted, frozen=True, kw_only=True, tag="tag"):
    """Adds a tag to contacts that match a list's filters, or removes it (`changes`)."""

    filters: search.Filters
    #: In the form of `records.tag`.
    value: str
    is_removed: bool = False

    @property
    def name(self) -> str:
        """The file's name without its extension."""
        return "untagged-contacts" if self.is_removed else "tagged-contacts"


#: Kinds that change everything they find, and kinds that only write it to a file.
Change = Cancel | Tag
Written = Messages | Contacts | Audit | Usage | OptOuts | Rejects | Skipped
Wanted = Written | Change


class Page(msgspec.Struct, frozen=True):
    """Lines of a file. `after`: where the next page begins, in a form specific to its kind; None: this was the last."""

    text: str
    rows: int
    after: str | None


async def page(conn: Connection, actor: Actor, wanted: Written, *, after: str | None, is_first: bool) -> Page:
    """The next page; the first one of a CSV file begins with its columns. Raises Invalid for filters that are no longer
    valid, NotFound for an import that has been deleted."""
    match wanted:
        case Messages():
            return await _messages(conn, actor, wanted, after, is_first)
        case Contacts():
            return await _contacts(conn, actor, wanted, after, is_first)
        case OptOuts():
            return await _opt_outs(conn, actor, wanted, after, is_first)
        case Rejects():
            return await _rejects(conn, actor, wanted, after, is_first)
        case Skipped():
            return await _skipped(conn, actor, wanted, after, is_first)
        case Audit():
            return await _audit(conn, wanted, after, is_first)
        case Usage():
            return await _usage(conn, actor, wanted, after)


#: Columns of skipped recipients, and of messages.
SKIPPED_COLUMNS = ("to", "name", "reason", "at")
COLUMNS = (
    *("id", "channel", "direction", "mode", "status", "failure", "to", "from", "template", "reference", "campaign"),
    *("key", "person", "country", "segments"),
    *("accepted_at", "sent_at", "delivered_at", "read_at", "failed_at"),
)


async def _messages(conn: Connection, actor: Actor, wanted: Messages, after: str | None, is_first: bool) -> Page:
    if wanted.ids:
        listed, further = await messages.by_ids(conn, actor, ids=wanted.ids), None
    else:
        found = await messages.list_page(conn, actor, filters=wanted.filters, after=place_of(after), limit=PAGE)
        listed = found.messages[:PAGE]
        further = _place(listed[-1].id if len(found.messages) > PAGE else found.seen)
    values = [_of_message(one, actor, wanted) for one in listed]
    if wanted.form == "csv":
        rows = [["" if (cell := one[name]) is None else str(cell) for name in COLUMNS] for one in values]
        return Page(sheet(wanted, COLUMNS, rows, is_first), len(listed), further)
    return Page(_lines(values), len(listed), further)


def _of_message(one: Message, actor: Actor, wanted: Messages) -> dict[str, str | int | None]:
    def id(value: UUID | None) -> str | None:
        return None if value is None else str(value)

    whole = wanted.sees == "all" or (wanted.sees == "own" and one.person_id == actor.user_id)
    return {
        "id": str(one.id),
        "channel": one.channel,
        "direction": one.direction,
        "mode": actor.mode,
        "status": one.status,
        "failure": one.failure_code,
        "to": _shown(one.recipient, whole=whole),
        "from": one.sender,
        "template": one.template,
        "reference": one.client_reference,
        "campaign": id(one.campaign_id),
        "key": id(one.key_id),
        "person": id(one.person_id),
        "country": one.country,
        "segments": one.segments,
        "accepted_at": iso_or_none(one.accepted_at),
        "sent_at": iso_or_none(one.sent_at),
        "delivered_at": iso_or_none(one.delivered_at),
        "read_at": iso_or_none(one.read_at),
        "failed_at": iso_or_none(one.failed_at),
    }


def _shown(recipient: str, *, whole: bool) -> str:
    return recipient if whole else f"••• {recipient[-4:]}"


async def _contacts(conn: Connection, actor: Actor, wanted: Contacts, after: str | None, is_first: bool) -> Page:
    if wanted.ids:
        listed, further = await search.by_ids(conn, actor, ids=wanted.ids), None
    else:
        found = await search.search(conn, actor, filters=wanted.filters, after=place_of(after), limit=PAGE)
        listed = found.contacts[:PAGE]
        further = _place(listed[-1].id if len(found.contacts) > PAGE else found.seen)
    if wanted.form == "csv":
        text = sheet(wanted, contacts.COLUMNS, [contacts.cells(one) for one in listed], is_first)
    else:
        text = "".join(contacts.line(one) for one in listed)
    return Page(text, len(listed), further)


async def _opt_outs(conn: Connection, actor: Actor, wanted: OptOuts, after: str | None, is_first: bool) -> Page:
    place = None
    if after is not None:
        since, _, person = after.partition(" ")
        place = datetime.fromisoformat(since), person
    found = await optouts.list_page(conn, actor, after=place, limit=PAGE + 1)
    listed = found[:PAGE]
    further = None
    if len(found) > PAGE:
        last, person = listed[-1]
        further = f"{last.since.isoformat()} {person}"
    values = [opt_outs.values(one) for one, _ in listed]
    if wanted.form == "csv":
        rows = [[one[name] or "" for name in opt_outs.COLUMNS] for one in values]
        return Page(sheet(wanted, opt_outs.COLUMNS, rows, is_first), len(rows), further)
    return Page(_lines(values), len(values), further)


async def _rejects(conn: Connection, actor: Actor, wanted: Rejects, after: str | None, is_first: bool) -> Page:
    draft = await drafts.get(conn, actor, id=wanted.import_id)
    found = await corrections.rejects(conn, actor, id=draft.id, after=int(after or 0), limit=PAGE + 1)
    listed = found[:PAGE]
    rows = [[str(one.row), one.reason, *one.cells] for one in listed]
    further = str(listed[-1].row) if len(found) > PAGE else None
    return Page(sheet(wanted, [*REJECT_COLUMNS, *draft.columns], rows, is_first), len(rows), further)


async def _usage(conn: Connection, actor: Actor, wanted: Usage, after: str | None) -> Page:
    month, by = wanted.month, wanted.by
    if references.is_by_reference(by):
        counted = references.Counted() if after is None else msgspec.json.decode(after, type=references.Counted)
        if (further := await references.step(conn, actor, counted, month=month, by=by)) is not None:
            return Page("", 0, msgspec.json.encode(further).decode())
        made = await references.billed(conn, actor, counted, month=month, by=by)
    else:
        made = await usage.bill(conn, actor, month=month, by=by)
    text = usage.as_csv(made, delimiter=wanted.delimiter) if wanted.form == "csv" else usage.as_document(made)
    return Page(_begun(wanted, text, is_first=True), len(made.lines), None)


async def _skipped(conn: Connection, actor: Actor, wanted: Skipped, after: str | None, is_first: bool) -> Page:
    found = await skipped.list_page(
        conn, actor, campaign_id=wanted.campaign_id, reason=wanted.reason, after=place_of(after), limit=PAGE
    )
    listed, whole = found[:PAGE], wanted.sees == "all"
    further = _place(listed[-1].id if len(found) > PAGE else None)
    values = [
        {
            "to": _shown(one.recipient, whole=whole),
            "name": (one.name or "") if whole else "",
            "reason": one.reason,
            "at": iso(one.at),
        }
        for one in listed
    ]
    if wanted.form == "csv":
        rows = [[one[name] for name in SKIPPED_COLUMNS] for one in values]
        return Page(sheet(wanted, SKIPPED_COLUMNS, rows, is_first), len(rows), further)
    return Page(_lines(values), len(values), further)


def place_of(after: str | None) -> UUID | None:
    """The id after which a page begins, for kinds whose places are ids."""
    return None if after is None else UUID(after)


def _place(last: UUID | None) -> str | None:
    return None if last is None else str(last)


async def _audit(conn: Connection, wanted: Audit, after: str | None, is_first: bool) -> Page:
    looked = await audit.list_page(conn, wanted.filters, after=place_of(after), limit=PAGE, is_for_customers=True)
    columns = audit.AuditEntry.__struct_fields__
    if wanted.form != "csv":
        return Page(
            _lines([audit.as_values(one) | {"at": iso(one.at)} for one in looked.entries]),
            len(looked.entries),
            _place(looked.seen),
        )
    rows = [
        ["" if (cell := iso(one.at) if name == "at" else getattr(one, name)) is None else str(cell) for name in columns]
        for one in looked.entries
    ]
    return Page(sheet(wanted, columns, rows, is_first), len(rows), _place(looked.seen))


def _lines(values: Sequence[object]) -> str:
    return "".join(msgspec.json.encode(one).decode() + "\n" for one in values)


def sheet(wanted: Wanted, columns: Sequence[str], rows: Sequence[Sequence[str]], is_first: bool) -> str:
    """Rows as CSV, preceded by the columns if they are the first."""
    file = io.StringIO()
    writer = Writer(file, columns, delimiter=wanted.delimiter)
    header = file.tell()
    for row in rows:
        writer.row(row)
    return _begun(wanted, file.getvalue() if is_first else file.getvalue()[header:], is_first=is_first)


def _begun(wanted: Wanted, text: str, *, is_first: bool) -> str:
    """Spreadsheets recognize UTF-8 by the byte order mark."""
    return "\ufeff" + text if is_first and wanted.form == "csv" else text
