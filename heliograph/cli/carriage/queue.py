"""`heliograph queue`: inspect, hold, release and withdraw outgoing work."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import typer

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.cli.terminal.console import (
    DataDir,
    Json,
    OrgOrAll,
    Problem,
    as_plain,
    group,
    on_database,
    only,
    say,
    settings_of,
    shell,
    show,
)
from heliograph.overview.installation import withdrawing
from heliograph.queue import holds
from heliograph.queue.holds import OUTGOING, Hold, Selection, Waiting, Withdrawn
from heliograph.sms.dispatch import suppliers

app = group("List, hold, release and withdraw queued work.")

COLUMNS = ("kind", "line", "organization", "rows", "held", "leased", "later", "oldest_at")
HOLD_COLUMNS = ("id", "kind", "supplier", "organization", "before", "reason", "created_at")

Kind = Annotated[
    Literal["sms", "whatsapp", "webhook"] | None,
    typer.Option(show_default=False, help="Only this kind of work. Defaults to everything that is sent."),
]
SupplierName = Annotated[
    str | None, typer.Option("--supplier", metavar="NAME", show_default=False, help="Only work for this supplier.")
]
Age = Annotated[
    str | None,
    typer.Option(
        "--older-than", metavar="AGE", show_default=False, help="Only work older than this: 90s, 15m, 2h or 3d."
    ),
]


@app.command("list")
def list_(
    kind: Kind = None,
    supplier: SupplierName = None,
    older_than: Age = None,
    org: OrgOrAll = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of lines.")] = 100,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show how much work is waiting, by kind, supplier (or number, or endpoint) and organization, and what is held.

    \b
    Examples:
      heliograph queue list
      heliograph queue list --kind sms --older-than 15m
    """

    async def work(conn: Connection) -> tuple[list[Waiting], list[dict[str, Any]]]:
        which = await _selection(conn, kind, supplier, org, older_than)
        return await holds.summary(conn, which, limit=limit), await _named(conn, await holds.list_all(conn))

    waiting, held = on_database(work, settings_of(data_dir))
    if json:
        show({"waiting": waiting, "holds": held}, json)
        return
    show(waiting, json, COLUMNS)
    if held:
        print("\nHeld:")
        show(held, json, HOLD_COLUMNS)


@app.command("hold")
def hold(
    reason: Annotated[str, typer.Option(help="Reason, shown by `queue list` and `doctor`.")] = "",
    kind: Kind = None,
    supplier: SupplierName = None,
    older_than: Age = None,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Hold outgoing work until it is released. Holds survive restarts, and nothing is lost.

    Without options everything is held: SMS, WhatsApp messages and webhooks. New work is held as well, unless
    --older-than restricts the hold to existing work. Messages are still accepted, and expire as usual.

    \b
    Examples:
      heliograph queue hold --reason "restored from last night's dump"
      heliograph queue hold --kind sms --org Acme
      heliograph queue hold --older-than 2h
    """
    if len(reason) > holds.LONGEST_REASON:
        raise typer.BadParameter(f"has at most {holds.LONGEST_REASON} characters", param_hint="--reason")

    async def work(conn: Connection) -> tuple[list[dict[str, Any]], int]:
        which = await _selection(conn, kind, supplier, org, older_than)
        made, leased = await holds.hold(conn, which, reason=reason, by=shell())
        return await _named(conn, made), leased

    held, leased = on_database(work, settings_of(data_dir))
    show(held, json, HOLD_COLUMNS)
    if leased:
        say(f"{leased:,} rows are already claimed by workers, which will still send them.")


@app.command("release")
def release(
    hold_id: Annotated[
        UUID | None, typer.Argument(metavar="[HOLD_ID]", help="Id of a hold, from `queue list`.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All holds.")] = False,
    kind: Kind = None,
    supplier: SupplierName = None,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Release held work. Give the id of a hold, or select holds with the options of `queue hold` or --all.

    \b
    Examples:
      heliograph queue release --all
      heliograph queue release --kind webhook
    """
    if not everything and hold_id is kind is supplier is org is None:
        raise typer.BadParameter("select the holds: HOLD_ID, --kind, --supplier, --org or --all")

    async def work(conn: Connection) -> list[dict[str, Any]]:
        which = await _selection(conn, kind, supplier, org, None)
        return await _named(conn, await holds.release(conn, which, id=hold_id, by=shell()))

    released = on_database(work, settings_of(data_dir))
    if hold_id is not None and not released:
        raise Problem(f"there is no hold {hold_id}")
    show(released, json, HOLD_COLUMNS)


@app.command("hurry")
def hurry(
    id: Annotated[UUID, typer.Argument(metavar="ID", help="Id of a message, or of a webhook event.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Have a message or event that waits for its next try go out now. What is held stays held.

    \b
    Example:
      heliograph queue hurry 0199c0de-0000-7000-8000-000000000000
    """
    done = on_database(lambda conn: holds.hurry(conn, id=id, by=shell()), settings_of(data_dir))
    if json:
        show({"hurried": done}, json)
    say("It goes out now." if done else "It does not wait, or a worker has it.")


@app.command("withdraw")
def withdraw(
    tried: Annotated[
        bool,
        typer.Option(
            "--tried", help="Also messages that were attempted and may have been sent; they end as `unknown`."
        ),
    ] = False,
    kind: Kind = None,
    supplier: SupplierName = None,
    older_than: Age = None,
    org: OrgOrAll = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Remove work from the queue permanently. Messages are canceled and refunded.

    Work claimed by a worker is left alone, and so is work that was attempted before, unless --tried is given. Webhook
    deliveries are dropped; their events stay available in `GET /v1/events`, and `heliograph webhook` can resend them.

    \b
    Examples:
      heliograph queue withdraw --kind sms --older-than 2h
      heliograph queue withdraw --org Acme --tried --yes
    """
    settings = settings_of(data_dir)

    async def selected(conn: Connection) -> tuple[Selection, int]:
        which = await _selection(conn, kind, supplier, org, older_than)
        return which, sum(one.rows for one in await holds.summary(conn, which, limit=1_000_000))

    which, found = on_database(selected, settings)
    if found and not yes:
        typer.confirm(f"Withdraw up to {found:,} rows permanently?", abort=True, err=True)

    async def work(conn: Connection) -> dict[str, Withdrawn]:
        return await withdrawing.withdraw(conn, which, tried=tried, by=shell(), on_progress=_told)

    done = on_database(work, settings)
    rows = [{"kind": name, **as_plain(counts)} for name, counts in done.items()]
    show(rows, json, ("kind", *Withdrawn.__struct_fields__))


def _told(kind: str, done: Withdrawn) -> None:
    say(f"{kind}: {done.canceled + done.ended:,} withdrawn so far.")


async def _selection(
    conn: Connection, kind: str | None, supplier: str | None, org: str | None, older_than: str | None
) -> Selection:
    if supplier is not None and kind not in (None, "sms"):
        raise Invalid(("supplier", "channel", "suppliers carry SMS only: omit --kind, or use --kind sms"))
    kinds = ("sms",) if supplier is not None else OUTGOING if kind is None else (kind,)
    return Selection(
        kinds=kinds,
        line=None if supplier is None else await suppliers.id_of(conn, supplier),
        organization_id=await only(conn, org),
        before=None if older_than is None else await holds.ago(conn, _age(older_than)),
    )


def _age(text: str) -> timedelta:
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if match is None:
        raise typer.BadParameter("must be an age such as 90s, 15m, 2h or 3d", param_hint="--older-than")
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}[match[2]]
    return timedelta(**{unit: int(match[1])})


async def _named(conn: Connection, held: list[Hold]) -> list[dict[str, Any]]:
    """Holds, with the names of the suppliers and organizations they refer to."""
    names = {row["id"]: row["name"] for row in await conn.fetch(NAMES, [one for hold in held for one in _ids(hold)])}
    return [
        as_plain(one)
        | {
            "supplier": names.get(one.line, one.line and str(one.line)),
            "organization": names.get(one.organization_id),
        }
        for one in held
    ]


NAMES = """
SELECT id, name FROM suppliers WHERE id = ANY ($1) UNION ALL SELECT id, name FROM organizations WHERE id = ANY ($1)
"""


def _ids(hold: Hold) -> list[UUID]:
    return [one for one in (hold.line, hold.organization_id) if one is not None]
