"""`heliograph doctor`: is everything as it should be, and if not, what is to be done.

The rule nobody may break: a check that finds nothing wrong says what it saw, and one that does says the remedy.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable
from datetime import UTC, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import asyncpg
import msgspec
import typer

from heliograph.base.crypto import Unsealable
from heliograph.base.database import clock, migrate
from heliograph.base.database import url as database_url
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.embedded.install import PostgresError
from heliograph.base.process import logs
from heliograph.base.process.settings import Settings, SettingsError, demand_secret_key
from heliograph.cli.terminal.console import FAILED, DataDir, Json, Problem, connection, settings_of, show, shown_url
from heliograph.cli.terminal.http import address, ask
from heliograph.queue import holds as queue_holds
from heliograph.queue import leases
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.received import inbound
from heliograph.sms.reports import diagnosis
from heliograph.whatsapp.callbacks import dead_letters, intake
from heliograph.whatsapp.dispatch import holds
from heliograph.whatsapp.mirror import accounts, apps, onboarding

#: The oldest PostgreSQL that everything here runs on.
OLDEST_POSTGRES = 15
#: Work that has been due for longer says that the queue does not keep up, seconds.
QUEUE_LATE = 60.0
#: Times of this machine and the database's must not differ by more, seconds: both are written down.
SKEW = 2.0
SET_CLOCKS = (
    "Synchronize both clocks by NTP. Until then retention is suspended, and a process that ends cannot start again."
)
#: A worker that was not seen for longer is gone, seconds.
WORKER_SEEN = 15.0
#: Without these, an answered message could be lost in a power cut.
DURABLE = ("fsync", "full_page_writes", "synchronous_commit")

State = Literal["ok", "warning", "failed"]


class Check(msgspec.Struct, frozen=True):
    """One check's result. `remedy` is empty when it is ok."""

    check: str
    state: State
    detail: str
    remedy: str = ""


def command(
    url: Annotated[
        str | None,
        typer.Option(
            help="URL of the API to check. Defaults to that of `heliograph up`, or else http://127.0.0.1:8080."
        ),
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Check settings, database, workers, suppliers, WhatsApp accounts, queue, inbox, callbacks and API.

    Exits with status 1 if something is wrong.

    \b
    Examples:
      heliograph doctor
      heliograph doctor --url https://sms.example.com --json
    """
    checks = asyncio.run(_examine(address(url, data_dir), data_dir))
    show(checks, json, ("check", "state", "detail"))
    if not json:
        for check in checks:
            if check.remedy:
                print(f"\n{check.check}: {check.remedy}")
    if any(check.state == "failed" for check in checks):
        raise typer.Exit(FAILED)


async def _examine(url: str, data_dir: Path | None) -> list[Check]:
    try:
        settings = settings_of(data_dir)
        logs.check(settings)
    except (SettingsError, PostgresError) as error:
        return [
            Check("settings", "failed", str(error), "Correct the setting named; docs/settings.md lists all settings.")
        ]
    checks = [Check("settings", "ok", "all are valid"), _secret_key(settings)]
    try:
        async with connection(settings.database_url) as conn:
            checks += await _database(conn, settings)
    except Problem as problem:
        remedy = "Start it, or set HELIOGRAPH_DATABASE_URL to its address."
        checks.append(Check("database", "failed", str(problem), remedy))
    checks.append(await asyncio.to_thread(_api, url))
    return checks


def _secret_key(settings: Settings) -> Check:
    try:
        demand_secret_key(settings)
    except SettingsError as error:
        return Check("secret key", "failed", "HELIOGRAPH_SECRET_KEY is not set", str(error))
    return Check("secret key", "ok", f"{len(settings.secret_key)} characters")


async def _database(conn: Connection, settings: Settings) -> list[Check]:
    checks = [await _server(conn, settings), _encryption(settings.database_url), await _durable(conn), _clock()]
    try:
        pending = await migrate.pending(conn)
    except migrate.ForeignSchema as error:
        return [*checks, Check("migrations", "failed", "of another schema", str(error))]
    if pending:
        checks.append(Check("migrations", "failed", f"pending: {', '.join(pending)}", "Run `heliograph migrate`."))
    else:
        checks.append(Check("migrations", "ok", "none pending"))
    rest: list[Callable[[Connection, Settings], Awaitable[list[Check]]]] = [
        _partitions,
        _workers,
        _suppliers,
        _whatsapp,
        _queue,
        _inbox,
        _callbacks,
    ]
    try:
        for check in rest:
            checks += await check(conn, settings)
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError):
        return checks  # the tables are not there yet, and that was said
    return checks


async def _server(conn: Connection, settings: Settings) -> Check:
    version: str = await conn.fetchval("SHOW server_version")
    detail = f"PostgreSQL {version.split()[0]} at {shown_url(settings.database_url)}"
    if conn.get_server_version().major < OLDEST_POSTGRES:
        return Check("database", "failed", detail, f"Upgrade PostgreSQL to {OLDEST_POSTGRES} or later.")
    if await conn.fetchval("SELECT pg_is_in_recovery()"):
        return Check("database", "failed", f"{detail}: this is a standby", "Use the address of the primary.")
    return Check("database", "ok", detail)


async def _durable(conn: Connection) -> Check:
    off = [name for name in DURABLE if await conn.fetchval("SELECT current_setting($1)", name) == "off"]
    if off:
        remedy = "Turn them on in postgresql.conf: without them, a crash can lose accepted messages."
        return Check("durability", "failed", f"{' and '.join(off)} off", remedy)
    return Check("durability", "ok", f"{', '.join(DURABLE)} on")


def _encryption(url: str) -> Check:
    target = database_url.parse(url)
    far = [host.name for host in target.hosts if not database_url.is_local(host.name)]
    if not far:
        return Check("encryption", "ok", "the database is on this machine")
    mode = target.sslmode or os.environ.get("PGSSLMODE", "")
    if mode == "verify-full":
        return Check("encryption", "ok", "the server's certificate and host name are verified")
    detail = f"sslmode is {mode or 'prefer, the default'}: a man in the middle can impersonate {', '.join(far)}"
    remedy = "Add `?sslmode=verify-full&sslrootcert=FILE` to HELIOGRAPH_DATABASE_URL (FILE: your CA's certificate)."
    return Check("encryption", "warning", detail, remedy)


def _clock() -> Check:
    ahead = clock.ahead()
    if abs(ahead) > SKEW:
        detail = f"this machine's is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the database's"
        return Check("clocks", "failed", detail, SET_CLOCKS)
    return Check("clocks", "ok", f"{abs(ahead) * 1000:.0f} ms apart")


async def _partitions(conn: Connection, settings: Settings) -> list[Check]:
    today = (await conn.fetchval("SELECT now()")).astimezone(UTC).date()
    months = (today.replace(day=1), (today.replace(day=1) + timedelta(days=32)).replace(day=1))
    names = [f"{table}_{month:%Y_%m}" for table in migrate.PARTITIONED for month in months]
    days = (today, today + timedelta(days=1))
    names += [migrate.day_name(table, day) for table in migrate.DAILY for day in days]
    missing = [name for name in names if await conn.fetchval("SELECT to_regclass($1) IS NULL", name)]
    if missing:
        remedy = "Keep a worker running, which creates them, or run `heliograph migrate`."
        return [Check("partitions", "failed", f"missing: {', '.join(missing)}", remedy)]
    return [Check("partitions", "ok", "this month's and next month's, today's and tomorrow's exist")]


WORKERS = """
SELECT name, clock_ahead FROM workers WHERE seen_at > now() - make_interval(secs => $1) ORDER BY seen_at DESC
"""


async def _workers(conn: Connection, settings: Settings) -> list[Check]:
    rows = await conn.fetch(WORKERS, WORKER_SEEN)
    living = [row["name"] for row in rows]
    skewed = [f"{row['name']} by {row['clock_ahead']:+.0f} s" for row in rows if abs(row["clock_ahead"]) > clock.MOST]
    if skewed:
        return [Check("workers", "failed", f"clocks differ from the database's: {', '.join(skewed)}", SET_CLOCKS)]
    if living:
        return [Check("workers", "ok", ", ".join(living))]
    return [Check("workers", "failed", f"none seen in the last {WORKER_SEEN:g} s", "Start `heliograph worker`.")]


async def _suppliers(conn: Connection, settings: Settings) -> list[Check]:
    found = await routing.load(conn)
    if not found:
        remedy = "Add one with `heliograph supplier add smpp`; until then only messages of test keys are sent."
        return [Check("suppliers", "warning", "none configured", remedy)]
    held = await suppliers.sessions(conn)
    key = suppliers.seal_key(settings) if settings.secret_key else None
    serve = {one.id for one in routing.serving(found)}
    checks = []
    for one in found:
        name = f"supplier {one.name}"
        _, bound, error = held.get(one.id, (0, 0, ""))
        if one.state != "active":
            remedy = f"Run `heliograph supplier resume {one.name}` to send through it again."
            checks.append(Check(name, "warning", one.state, remedy))
            continue
        try:
            if key is not None:
                suppliers.open_secret(key, one)
        except Unsealable:
            remedy = "Start with the secret key it was added with, or remove it and add it again."
            checks.append(Check(name, "failed", "its password was encrypted with another secret key", remedy))
            continue
        if one.simulated:
            checks.append(_simulator(one, bound, serves=one.id in serve))
        elif bound:
            checks.append(Check(name, "ok", f"{bound} of {one.sessions} sessions bound"))
        else:
            remedy = "Start a worker if none is running; otherwise check the address, system_id and password."
            checks.append(Check(name, "failed", f"no session bound{(': ' + error if error else '')}", remedy))
    return checks + await _receipts(conn, {one.id: one.name for one in found})


async def _receipts(conn: Connection, names: dict[UUID, str]) -> list[Check]:
    """What suppliers' receipts say that fits nothing, or means nothing to us."""
    checks = []
    for advice in await diagnosis.advise(conn):
        settings = " and ".join(f"{name}={base}" for name, base in advice.settings.items())
        detail = f"{advice.looked} match no message; {advice.fitting} of them would match with {settings}"
        checks.append(Check(f"receipts of {advice.supplier}", "failed", detail, f"`{advice.command}`"))
    for id, words in (await diagnosis.words(conn)).items():
        if id in names:
            said = ", ".join(f"{one.word} ({one.count})" for one in words[:10])
            command = f"heliograph supplier set {shlex.quote(names[id])} final_states.WORD=undelivered"
            remedy = f"If one of them is a final state: `{command}`."
            checks.append(Check(f"receipts of {names[id]}", "warning", f"unknown states: {said}", remedy))
    return checks


def _simulator(one: routing.Supplier, bound: int, *, serves: bool) -> Check:
    """A supplier that only pretends."""
    name = f"supplier {one.name}"
    if not serves:
        return Check(name, "ok", "a simulator: live messages go only to the other suppliers")
    if bound:
        return Check(name, "ok", f"a simulator: live messages reach nobody; {bound} of {one.sessions} sessions bound")
    return Check(name, "failed", "a simulator, no session bound", "Start a worker and the simulator.")


async def _whatsapp(conn: Connection, settings: Settings) -> list[Check]:
    key = apps.seal_key(settings) if settings.secret_key else None
    found = await onboarding.standing(conn)
    if not found:
        return [Check("whatsapp", "ok", "none connected")]
    return [check for one in found for check in (_account(one, key), *_warned(one))]


def _warned(one: dict[str, Any]) -> list[Check]:
    if not one["warnings"]:
        return []
    waba_id = one["waba_id"]
    remedy = f"Resolve it with Meta, then run `heliograph whatsapp account acknowledge {waba_id}`."
    return [Check(f"whatsapp {waba_id} warnings", "warning", one["warnings"], remedy)]


def _account(one: dict[str, Any], key: bytes | None) -> Check:
    """One WhatsApp account: what keeps it from sending first, then what keeps it from hearing."""
    name = f"whatsapp {one['waba_id']}"
    update = f'heliograph whatsapp account update {one["waba_id"]} --org "{one["organization"]}"'
    try:
        if key is not None:
            accounts.open_token(key, one["id"], one["token"])
    except Unsealable:
        remedy = f"Start with the secret key it was added with, or run `{update} --token-file FILE`."
        return Check(name, "failed", "its token was encrypted with another secret key", remedy)
    if one["state"] == "paused":
        remedy = f"Run `heliograph whatsapp account resume {one['waba_id']}` to send from its numbers again."
        return Check(name, "warning", "paused", remedy)
    status, detail = one["credential_status"], one["credential_detail"]
    if status == "invalid":
        return Check(name, "failed", f"Meta rejects its token: {detail}", f"Run `{update} --token-file FILE`.")
    if one["held_reason"]:
        remedy = (
            "Resolve it with Meta. Waiting messages then go out by themselves, or immediately after "
            f"`heliograph whatsapp account release {one['waba_id']}`."
        )
        return Check(name, "warning", f"held: {one['held_reason']}", remedy)
    if status == "missing_scope":
        return Check(name, "warning", f"its token lacks permissions: {detail}", "Grant them at Meta.")
    if status == "expiring":
        ends = f"its token expires at {one['credential_expires_at']:%Y-%m-%d %H:%M} UTC"
        return Check(name, "warning", ends, f"Run `{update} --token-file FILE`.")
    if one["subscribed"] is False:
        return Check(name, "warning", "Meta is not subscribed to send its callbacks", f"Run `{update} --subscribe`.")
    if not one["called_back"]:
        remedy = f"Enter at Meta what `heliograph whatsapp account show {one['waba_id']}` prints."
        return Check(name, "warning", "no callback from Meta has ever arrived", remedy)
    if one["mirror_detail"]:
        remedy = "Numbers and templates are as of the last sync, which is being retried."
        return Check(name, "warning", f"the last sync with Meta failed: {one['mirror_detail']}", remedy)
    return Check(name, "ok", "its token has not been checked yet" if status == "unknown" else "its token is valid")


async def _queue(conn: Connection, settings: Settings) -> list[Check]:
    # What waits for a number that Meta holds up is told with its account.
    held = await holds.held(conn)
    ages = {kind: await queue_holds.late(conn, kind, without=held) for kind in queue_holds.OUTGOING}
    late = ", ".join(f"{kind} is {age:.0f} s overdue" for kind, age in ages.items() if age > QUEUE_LATE)
    check = Check("queue", "ok", "nothing overdue")
    if late:
        remedy = "Check the workers, suppliers and accounts first; otherwise start more workers."
        check = Check("queue", "failed", late, remedy)
    withheld = await queue_holds.list_all(conn)
    if not withheld:
        return [check]
    kinds = ", ".join(sorted({one.kind for one in withheld}))
    reasons = "; ".join(sorted({one.reason for one in withheld if one.reason}))
    detail = f"{kinds} held by an operator since {iso(withheld[0].created_at)}; {reasons or 'no reason given'}"
    remedy = "`heliograph queue list` shows what is held, `heliograph queue release` releases it."
    return [check, Check("holds", "warning", detail, remedy)]


async def _inbox(conn: Connection, settings: Settings) -> list[Check]:
    late, unassigned = await inbound.standing(conn)
    if late > QUEUE_LATE:
        return [Check("inbox", "failed", f"inbound messages are {late:.0f} s overdue", "Start a worker.")]
    if unassigned:
        detail = f"{unassigned} inbound messages went to numbers that belong to no organization, or to several"
        return [Check("inbox", "warning", detail, "See `heliograph inbound list --unassigned`.")]
    return [Check("inbox", "ok", "every inbound message has been assigned to an organization")]


async def _callbacks(conn: Connection, settings: Settings) -> list[Check]:
    late = await leases.oldest(conn, intake.KIND)
    if late > QUEUE_LATE:
        return [Check("callbacks", "failed", f"callbacks from Meta are {late:.0f} s overdue", "Start a worker.")]
    aside = await dead_letters.count(conn)
    if aside:
        remedy = "See `heliograph whatsapp inbound rejects`."
        return [Check("callbacks", "warning", f"{aside} callback items could not be applied", remedy)]
    return [Check("callbacks", "ok", "all callbacks from Meta are processed")]


def _api(url: str) -> Check:
    remedy = "Start `heliograph api`, or give its URL with --url."
    try:
        status, _, answer = ask("GET", url, "/health", timeout=5.0)
    except Problem as problem:
        return Check("api", "failed", str(problem), remedy)
    if status != 200 or not isinstance(answer, dict):
        return Check("api", "failed", f"{url} answered {status}", remedy)
    if answer.get("status") != "ok":
        wrong = [f"{name} {state}" for name, state in answer.get("checks", {}).items() if state != "ok"]
        return Check("api", "failed", f"{url} says: {', '.join(wrong)}", "See the checks above.")
    return Check("api", "ok", f"{url} answers")
