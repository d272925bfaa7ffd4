"""`heliograph receipts`: what suppliers were handed, accepted and reported, for comparison with their bills."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

import typer

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import YEARS, DataDir, in_capitals, moment, on_database, settings_of, shell
from heliograph.cli.terminal.files import STDOUT, unless_stdout, writable, writing
from heliograph.cli.terminal.printing import Json, as_plain, group, in_utf8, is_for_programs, say, show
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.reports import reconciliation, unmatched, words
from heliograph.sms.reports.receipts import Applied
from heliograph.sms.reports.reconciliation import Reconciled
from heliograph.sms.reports.unmatched import ReceiptKey
from heliograph.traffic.reconciliation import Query

app = group("Reconcile what suppliers were handed with what they reported, and unmatched receipts.")

COLUMNS = (
    *("supplier", "at", "country", "submitted", "answered", "accepted", "matched", "delivered", "late", "never"),
    *("waiting", "orphaned", "p50", "p95", "p99", "delivered_share", "week_before_delivered_share", "charged", "owed"),
    "due_back",
)
#: Maximum lines of a report.
MOST = 10_000


@app.command("report")
def report(
    supplier: Annotated[str | None, typer.Option(metavar="SUPPLIER", help="Only this supplier, by name or id.")] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="WHEN", help="From this day or time on. Defaults to 7 days ago.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="WHEN", help="Before this day or time. Defaults to now.")
    ] = None,
    country: Annotated[
        str | None, typer.Option(callback=in_capitals, help="Only messages to this country, such as MZ.")
    ] = None,
    by: Annotated[
        Literal["hour", "day", "month", "country", "day,country", "hour,country", "month,country", "supplier"],
        typer.Option(help="What lines are split by, besides the supplier."),
    ] = "day,country",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV with all columns.")] = False,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Write the CSV to this file, which only you can read.")
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show, by supplier, day and country, how many messages were submitted, answered, accepted and reported on.

    A message counts in the hour in which the supplier accepted it. matched: a receipt reported the outcome; late: it
    came after the message's validity, or 24 hours; never: none came until it was given up; waiting: none has come yet.
    orphaned: receipts that match no message. Times to the receipt are in seconds. charged: what these messages cost
    according to the supplier's rate cards when they were handed over, by currency. owed: accepted but not delivered;
    due_back: the part of charged that was for those. A message that arrives late is subtracted again.

    \b
    Examples:
      heliograph receipts report
      heliograph receipts report --supplier main --from 2026-11-01 --to 2026-12-01 --by day --csv
      heliograph receipts report --from 2026-01-01 --to 2027-01-01 --by month --csv
    """
    csv, file = csv or file == STDOUT, unless_stdout(file)
    if json and (csv or file is not None):
        raise typer.BadParameter("choose one of --csv and --json", param_hint="--csv")
    if country is not None and not phones.is_region(country):
        raise typer.BadParameter("must be the ISO code of a country, such as MZ", param_hint="--country")
    begin, end = _moment(since, "--from"), _moment(until, "--to")
    if file is not None:
        writable(file)

    async def asked(conn: Connection) -> Query:
        id: UUID | None = None if supplier is None else await suppliers.id_of(conn, supplier)
        now = clock.now()
        today = clock.midnight(now)
        query = Query(
            date_from=begin or today - timedelta(days=7),
            date_to=end or now + timedelta(hours=1),
            by=by.split(","),
            supplier_id=id,
            country=country,
            limit=MOST,
        )
        if query.date_from >= query.date_to:
            raise typer.BadParameter("must be before --to", param_hint="--from")
        return query

    async def into(conn: Connection, path: Path) -> None:
        query = await asked(conn)
        with writing(path, encoding="utf-8-sig") as out:
            await _write(conn, query, out.write)

    async def printed(conn: Connection) -> None:
        await _write(conn, await asked(conn), in_utf8().write)

    async def work(conn: Connection) -> list[Reconciled]:
        return await reconciliation.report(conn, await asked(conn))

    if file is not None:
        on_database(lambda conn: into(conn, file), settings_of(data_dir))
        say(f"Written to {file}.")
        return
    if csv:
        on_database(printed, settings_of(data_dir))
        return
    found = on_database(work, settings_of(data_dir))
    if len(found) >= MOST:
        say(f"Truncated at {MOST} lines: choose fewer days, or one supplier; --csv has all of them.")
    show([one.row() for one in found], json, COLUMNS)


SupplierOption = Annotated[
    str | None, typer.Option("--supplier", metavar="SUPPLIER", help="Only this supplier, by name or id.")
]
Receipt = Annotated[str, typer.Argument(metavar="RECEIPT", help="As `heliograph receipts unmatched` shows it.")]
UNMATCHED = ("receipt", "supplier", "received_at", "keys", "state", "error", "tail", "tries", "next_try_at", "cause")


@app.command("unmatched")
def unmatched_(
    supplier: SupplierOption = None,
    orphans: Annotated[bool, typer.Option("--orphans", help="Only those that are no longer retried.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number to show.")] = 50,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List receipts that match no message, newest first, with the likely cause of each.

    cause: base (ids are written in another number base: the cure names the settings), recipient (the id is known, the
    number is not its message's), no_id, or unknown.

    \b
    Examples:
      heliograph receipts unmatched
      heliograph receipts unmatched --supplier main --orphans --json
    """

    async def work(conn: Connection) -> list[dict[str, object]]:
        id = None if supplier is None else await suppliers.id_of(conn, supplier)
        found = await unmatched.listed(conn, supplier_id=id, only_orphans=orphans, limit=limit)
        return [{"receipt": _written(one.place)} | as_plain(one) for one in found]

    listed = on_database(work, settings_of(data_dir))
    for one in listed:
        del one["place"]
        one["keys"] = one["keys"] if json else ",".join(map(str, one["keys"]))  # type: ignore[call-overload]
    show(listed, json, UNMATCHED, limit=limit)


@app.command("retry")
def retry(
    receipt: Annotated[
        str | None, typer.Argument(metavar="RECEIPT", help="As `heliograph receipts unmatched` shows it.")
    ] = None,
    supplier: Annotated[
        str | None, typer.Option("--supplier", metavar="SUPPLIER", help="All of this supplier: the newest thousand.")
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Try again now to match a receipt, or all those of a supplier.

    \b
    Example:
      heliograph receipts retry --supplier main
    """
    if (receipt is None) == (supplier is None):
        raise typer.BadParameter("give a receipt, or --supplier", param_hint="RECEIPT")

    async def work(conn: Connection) -> Applied:
        if receipt is not None:
            return await unmatched.try_again(conn, [_place(receipt)])
        return await unmatched.try_newest(conn, supplier_id=await suppliers.id_of(conn, str(supplier)))

    found = on_database(work, settings_of(data_dir))
    if is_for_programs(json):
        show({"matched": found.matched, "unmatched": found.unmatched}, json)
    say(f"{found.matched} found their message; {found.unmatched} are still unmatched.")


@app.command("match")
def match(
    receipt: Receipt,
    message: Annotated[UUID, typer.Option("--message", metavar="MESSAGE_ID", help="The message it is about.")],
    reason: Annotated[str, typer.Option(help="Why; the audit log keeps it.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Assign a receipt to a message that was handed to its supplier, whatever the receipt itself names.

    \b
    Example:
      heliograph receipts match 2027-01-31:… --message 0199c0de-0000-7000-8000-000000000000 --reason "the bill says so"
    """

    async def work(conn: Connection) -> bool:
        return await unmatched.match_by_hand(conn, _place(receipt), message_id=message, reason=reason, by=shell())

    moved = on_database(work, settings_of(data_dir))
    if is_for_programs(json):
        show({"moved": moved}, json)
    say("Matched, and its message's status changed." if moved else "Matched. The message stays as it is.")


@app.command("words")
def words_(json: Json = False, data_dir: DataDir = None) -> None:
    """List unknown states and error codes in the receipts of the last seven days.

    \b
    Example:
      heliograph receipts words
    """

    async def work(conn: Connection) -> list[dict[str, object]]:
        names = {one.id: one.name for one in await routing.load(conn)}
        kinds = (("state", await words.unknown_states(conn)), ("error", await words.error_codes(conn)))
        return [
            {"supplier": names[id], "kind": kind} | as_plain(one)
            for kind, found in kinds
            for id, some in found.items()
            if id in names
            for one in some
        ]

    found = on_database(work, settings_of(data_dir))
    show(found, json, ("supplier", "kind", "word", "count", "first_at", "last_at", "meaning"))


@app.command("explain")
def explain(
    supplier: Annotated[str, typer.Argument(metavar="SUPPLIER", help="Supplier, by name or id.")],
    code: Annotated[str, typer.Argument(metavar="CODE", help="An error code from `heliograph receipts words`.")],
    meaning: Annotated[str, typer.Argument(help="What it means; empty: unknown.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Note what an error code of a supplier means. What a state means is a setting: `heliograph supplier set SUPPLIER
    final_states.WORD=undelivered`.

    \b
    Example:
      heliograph receipts explain main 011 "absent subscriber"
    """

    async def work(conn: Connection) -> None:
        await words.say_error(conn, supplier=supplier, word=code, meaning=meaning, by=shell())

    on_database(work, settings_of(data_dir))
    if is_for_programs(json):
        show({"word": code, "meaning": meaning}, json)
    say("It is noted.")


async def _write(conn: Connection, query: Query, write: Callable[[str], object]) -> None:
    """Write a report as CSV, each piece as soon as it is read."""
    for number, piece in enumerate(reconciliation.pieces(query)):
        write(reconciliation.as_csv(await reconciliation.report(conn, piece), headed=number == 0))


def _written(place: ReceiptKey) -> str:
    """A receipt's place in the form in which operators enter it."""
    return f"{place.received_on}:{place.supplier_id}:{place.fingerprint}"


def _place(text: str) -> ReceiptKey:
    """The inverse of `_written`. Raises typer.BadParameter."""
    try:
        day, supplier, fingerprint = text.split(":")
        return ReceiptKey(date.fromisoformat(day), UUID(supplier), UUID(fingerprint))
    except ValueError:
        raise typer.BadParameter("must be as `heliograph receipts unmatched` shows it", param_hint="RECEIPT") from None


def _moment(text: str | None, option: str) -> datetime | None:
    """A time, or a date, which means midnight UTC."""
    if text is None:
        return None
    is_day = re.fullmatch(r"\d{4}-\d{2}-\d{2}", text)
    found = clock.moment_in(text) if is_day else moment(text, option)
    if found is None or found.year not in YEARS:
        raise typer.BadParameter("must be a day such as 2027-01-31", param_hint=option)
    return found
