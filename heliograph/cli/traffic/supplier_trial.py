"""`heliograph supplier test`: one message through an account, with the request, response and receipt.
`heliograph supplier watch`: its live traffic, masked."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import typer

from heliograph.audit import recording as audit
from heliograph.base import phones
from heliograph.base.crypto import Unsealable
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.base.process import logs
from heliograph.base.process.settings import Settings, SettingsError
from heliograph.cli.terminal.console import FAILED, DataDir, Problem, on_database, settings_of, shell
from heliograph.cli.terminal.printing import Json, cell, form, line, record, say, show, table
from heliograph.queue.workers import LIVE_WORKERS
from heliograph.sms.callbacks import addresses
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.management import following, trying
from heliograph.sms.management.following import TrialReceipt
from heliograph.sms.reports import waiting
from heliograph.sms.watched import pdus
from heliograph.sms.watched.pdus import StoredExchange
from heliograph.suppliers import kinds, trial
from heliograph.suppliers.contract import Account, Verdict
from heliograph.suppliers.trial import Trial

#: Seconds between two queries for the receipt.
POLL = 0.2
#: The same for a watch: workers write once a second.
WATCH_POLL = 0.5
RECEIPTS = ("at", "id", "state", "error")
KEPT_COLUMNS = ("at", "direction", "command", "sequence", "status", "said")
#: The recipient in the request shown when there is nobody to send it to.
EXAMPLE = "+12025550123"
WITHOUT_WORKER = "no worker is running, so nobody takes its receipt: start `heliograph worker`"
WITHOUT_URL = "HELIOGRAPH_PUBLIC_URL is not set, so the supplier has no address to send its receipt to"


def command(
    which: Annotated[str, typer.Argument(metavar="SUPPLIER", help="Supplier, by name or id.")],
    to: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help="Recipient, with + and country code. Omitted: nothing is sent."),
    ] = None,
    text: Annotated[str, typer.Option(metavar="TEXT", help="Text of the message.")] = "Test message",
    sender: Annotated[
        str, typer.Option("--from", metavar="NAME", help="Sender: a name, a short code, or a number with +.")
    ] = "Heliograph",
    wait: Annotated[float, typer.Option(min=0, max=600, help="Longest time to wait for its receipt, in seconds.")] = 30,
    extra_session: Annotated[
        bool, typer.Option("--extra-session", help="SMPP: bind even if workers hold all sessions of the account.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Send one message through a supplier, outside the queue, and show the request, the answer and the receipt.

    Secrets are hidden. Without --to nothing is sent: an SMPP account is bound; for any other kind, the request is only
    shown. Nothing is stored except an entry in the audit log; no quota is used. The receipt remains among the unmatched
    ones. Exit status 1 means that the supplier did not accept the message.

    \b
    Examples:
      heliograph supplier test main
      heliograph supplier test main --to +258841234567 --from ACME --wait 60
    """
    number = phones.international(to) if to else None
    if to is not None and number is None:
        raise typer.BadParameter("must be a phone number with + and country code", param_hint="--to")
    if not text.strip() or "\0" in text:
        raise typer.BadParameter("must not be empty", param_hint="--text")
    if not sender.strip() or "\0" in sender or len(sender) > 16:
        raise typer.BadParameter("must have 1 to 16 characters", param_hint="--from")
    settings = settings_of(data_dir, needs_key=True)
    # Shows the connector's log of its session on stderr.
    logs.configure(settings)

    async def work(conn: Connection) -> dict[str, Any]:
        supplier = await _supplier(conn, which)
        account = _account(supplier, settings)
        if not extra_session:
            await _demand_session(conn, supplier)
        submission = following.submission(number or EXAMPLE, text, sender)
        since = await trying.begins(conn)
        try:
            done = await trial.attempt(supplier.kind, account, submission, is_sent=number is not None)
        except SettingsError as error:
            raise Problem(f"{supplier.name} cannot be used: {error}") from None
        found = _result(supplier, done)
        verdict = found["verdict"] or ("not bound" if done.error else "not sent")
        await audit.record(
            conn,
            shell(),
            "supplier.tested",
            object_id=supplier.id,
            name=supplier.name,
            after={"recipient": number or "", "verdict": verdict, "code": found["code"]},
        )

        async def heard(ids: Sequence[str]) -> list[TrialReceipt]:
            return await trying.list_receipts(conn, supplier, submission, tuple(ids), since=since)

        return found | await _receipt(conn, supplier, done, settings, wait, heard)

    found = on_database(work, settings)
    if json:
        show(found, json)
    elif form(json) == "tsv":
        _print_tsv(found)
    else:
        _print(found)
    if found["error"] or found["verdict"] not in (None, Verdict.ACCEPTED.value):
        raise typer.Exit(FAILED)


async def _supplier(conn: Connection, which: str) -> Supplier:
    id = await suppliers.id_of(conn, which)
    return next(one for one in await routing.load(conn) if one.id == id)


def _account(supplier: Supplier, settings: Settings) -> Account:
    try:
        secret = suppliers.open_secret(suppliers.seal_key(settings), supplier)
    except Unsealable:
        raise Problem(f"the password of {supplier.name} was encrypted with another secret key") from None
    return Account(supplier.id, supplier.settings, secret, addresses.address(settings, supplier.id))


async def _demand_session(conn: Connection, supplier: Supplier) -> None:
    try:
        await trying.demand_session(conn, supplier)
    except Invalid:
        raise Problem(
            f"workers hold all sessions of {supplier.name} ({supplier.sessions}), and the account may allow no more:"
            " pause it first, or add --extra-session"
        ) from None


def _result(supplier: Supplier, done: Trial) -> dict[str, Any]:
    outcome = done.outcome
    return {
        "supplier": supplier.name,
        "kind": supplier.kind,
        "verdict": None if outcome is None else outcome.verdict.value,
        "code": "" if outcome is None else outcome.code,
        "detail": done.error if outcome is None else outcome.detail,
        "error": done.error,
        "ids": [] if outcome is None else [one.supplier_message_id for one in outcome.parts if one.supplier_message_id],
        "requests": done.requests,
        "answers": done.answers,
    }


async def _receipt(
    conn: Connection,
    supplier: Supplier,
    done: Trial,
    settings: Settings,
    wait: float,
    heard: Callable[[Sequence[str]], Awaitable[list[TrialReceipt]]],
) -> dict[str, Any]:
    """The receipts that arrived for it, or why there is none, and the setting with which those for its recipient would
    match its id."""
    found: dict[str, Any] = {"receipts": [], "note": "", "cure": {}}
    if done.outcome is None or done.outcome.verdict is not Verdict.ACCEPTED or not wait:
        return found
    ids = [one.supplier_message_id for one in done.outcome.parts if one.supplier_message_id]
    if supplier.kind in kinds.HTTP and not settings.public_url:
        return found | {"note": WITHOUT_URL}
    if not await conn.fetchval(LIVE_WORKERS):
        return found | {"note": WITHOUT_WORKER}
    if not ids:
        return found | {"note": "the supplier gave no id, so its receipt cannot be distinguished from others"}
    until = time.monotonic() + wait
    receipts = await _final(conn, supplier.id, ids)
    while not receipts and time.monotonic() < until:
        cure = following.cured(supplier.settings, ids, [one.ids for one in await heard(ids)])
        if cure:
            set_ = " ".join(f"--{name.replace('_', '-')} {base}" for name, base in cure.items())
            said = "its receipt names the same number, written in another base"
            return found | {
                "cure": cure,
                "note": f"{said}: heliograph supplier set {shlex.quote(supplier.name)} {set_}",
            }
        await asyncio.sleep(POLL)
        receipts = await _final(conn, supplier.id, ids)
    return found | {"receipts": receipts, "note": "" if receipts else f"no receipt within {wait:g} s"}


async def _final(conn: Connection, supplier_id: UUID, ids: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"at": iso(one.received_at), "id": one.id, "state": one.state, "error": one.error}
        for one in await waiting.named(conn, supplier_id=supplier_id, ids=ids)
    ]


def _told(found: dict[str, Any]) -> dict[str, Any]:
    names = ("supplier", "kind", "verdict", "code", "detail", "ids", "note")
    return {name: found[name] for name in names if found[name] or name in ("supplier", "verdict")}


def _print_tsv(found: dict[str, Any]) -> None:
    show(_told(found), False)
    for title, listed in (("request", found["requests"]), ("answer", found["answers"])):
        for one in listed:
            show({title: one}, False)
    show(found["receipts"], False, RECEIPTS)


def _print(found: dict[str, Any]) -> None:
    print(record(_told(found)))
    for title, listed in (("request", found["requests"]), ("answer", found["answers"])):
        for one in listed:
            print(f"\n{title}")
            print(record(one))
    if found["receipts"]:
        rows = [[cell(one[name]) for name in RECEIPTS] for one in found["receipts"]]
        print()
        print(table(rows, ("received", "id", "state", "error")))


def watch(
    which: Annotated[str, typer.Argument(metavar="SUPPLIER", help="Supplier, by name or id.")],
    minutes: Annotated[
        int, typer.Option(min=1, max=pdus.LONGEST // timedelta(minutes=1), help="How long to watch, in minutes.")
    ] = 2,
    count: Annotated[
        int, typer.Option(min=1, show_default="no end", help="Stop after this many PDUs, or requests and answers.")
    ] = 1_000_000,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Watch the PDUs of an SMPP account, or requests and answers over HTTP, oldest first, until the time is over or
    Ctrl-C.

    Numbers are cut to their last four digits, texts and bodies are replaced with their length, and passwords are never
    shown. Watching is recorded in the audit log. Above 200 a second, some are not shown.

    \b
    Examples:
      heliograph supplier watch main
      heliograph supplier watch main --minutes 5 --json
    """

    async def work(conn: Connection) -> None:
        id, _ = await pdus.begin(conn, supplier=which, lasts=timedelta(minutes=minutes), by=shell())
        before = (await pdus.seen(conn, id)).kept
        newest = before[0].id if before else None
        left = count
        say(f"Watching {which} for {minutes} min. Workers begin within two seconds.")
        while True:
            now = await pdus.seen(conn, id)
            fresh = [one for one in reversed(now.kept) if newest is None or one.id > newest]
            for one in fresh[:left]:
                _print_kept(one, json)
            left -= len(fresh)
            newest = fresh[-1].id if fresh else newest
            if now.until is None or left <= 0:
                return
            await asyncio.sleep(WATCH_POLL)

    on_database(work, settings_of(data_dir))


def _print_kept(one: StoredExchange, json: bool) -> None:
    told = {
        "at": iso(one.at),
        "direction": "sent" if one.is_sent else "received",
        "command": one.command,
        "sequence": one.sequence,
        "status": one.status,
    }
    said = " ".join(f"{name}={value}" for name, value in one.fields.items())
    line(told | ({"fields": one.fields} if json else {"said": said}), json, KEPT_COLUMNS)
