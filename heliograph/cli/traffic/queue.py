"""`heliograph queue`: inspect, hurry and withdraw outgoing work. `hold` holds it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal
from uuid import UUID

import typer

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.base.sentences import with_noun
from heliograph.cli.terminal.asking import confirm
from heliograph.cli.terminal.console import DataDir, OrgOrAll, Problem, on_database, only, settings_of, shell
from heliograph.cli.terminal.printing import Json, as_plain, form, group, is_for_programs, say, show
from heliograph.overview.installation import queued_work
from heliograph.queue import holds, waiting
from heliograph.queue.holds import OUTGOING, Selection, Withdrawn
from heliograph.sms.dispatch import suppliers

app = group("List, hurry and withdraw queued work.")

COLUMNS = ("kind", "line", "organization", "rows", "held", "leased", "later", "retrying", "expired", "oldest_at")

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
    """Show how much work is waiting, by kind, supplier (or number, or endpoint) and organization, and how much is held.

    Of the rows that no worker has, `retrying` were tried before, and `expired` are past their validity: they end once
    a worker takes them.

    At most 10,000 rows are counted, divided among the lines. For a longer line, `rows` is a minimum, marked as
    `is_more` in JSON and TSV; the other figures cover only the rows counted, which are those to be sent first.

    \b
    Examples:
      heliograph queue list
      heliograph queue list --kind sms --older-than 15m
    """

    async def work(conn: Connection) -> tuple[waiting.WaitingWork, int]:
        which = await selection(conn, kind, supplier, org, older_than)
        return await queued_work.backlog(conn, which, limit=limit), len(await holds.list_all(conn))

    found, held = on_database(work, settings_of(data_dir))
    rows = [as_plain(one) for one in found.waiting]
    if form(json) in (None, "table"):
        rows = [one | {"rows": f"at least {one['rows']}" if one["is_more"] else one["rows"]} for one in rows]
    show(rows, json, (*COLUMNS, "is_more") if form(json) == "tsv" else COLUMNS, limit=limit)
    if not found.is_whole:
        say(f"There are more lines than were checked, {waiting.PLACES} of each kind.")
    if held:
        say(f"{with_noun(held, 'hold is', 'holds are')} in force: `heliograph hold list`.")


@app.command("hurry")
def hurry(
    id: Annotated[UUID, typer.Argument(metavar="ID", help="Id of a message, or of a webhook event.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Send a message or event that is waiting for its next try now. Held work stays held. Exits with status 1 if it is
    not waiting.

    \b
    Example:
      heliograph queue hurry 0199c0de-0000-7000-8000-000000000000
    """
    done = on_database(lambda conn: holds.hurry(conn, id=id, by=shell()), settings_of(data_dir))
    if is_for_programs(json):
        show({"hurried": done}, json)
    if not done:
        raise Problem("nothing with this id is waiting for its next try, or a worker has it")
    say("It is being sent now.")


@app.command("withdraw")
def withdraw(
    tried: Annotated[
        bool,
        typer.Option(
            "--tried", help="Also messages that were attempted and may have been sent: they end with unknown outcome."
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

    Work claimed by a worker is left alone, and so are messages that may have been sent, unless --tried is given. Then
    SMS end as `unknown`, refunded only if `heliograph quota refunds` says so of that class; WhatsApp messages end as
    `failed`, and their reservation is released.
    Webhook deliveries are dropped; their events stay available in `GET /v1/events`, and `heliograph webhook` can resend
    them.

    \b
    Examples:
      heliograph queue withdraw --kind sms --older-than 2h
      heliograph queue withdraw --org Acme --tried --yes
    """
    settings = settings_of(data_dir)

    async def selected(conn: Connection) -> tuple[Selection, int]:
        which = await selection(conn, kind, supplier, org, older_than)
        return which, await waiting.count(conn, which)

    which, found = on_database(selected, settings)
    if found and not yes:
        confirm(f"Withdraw up to {with_noun(found, 'row')} permanently?")

    async def work(conn: Connection) -> dict[str, Withdrawn]:
        return await queued_work.withdraw(conn, which, tried=tried, by=shell(), on_progress=_say_progress)

    done = on_database(work, settings)
    rows = [{"kind": name, **as_plain(counts)} for name, counts in done.items()]
    show(rows, json, ("kind", *Withdrawn.__struct_fields__))


def _say_progress(kind: str, done: Withdrawn) -> None:
    say(f"{kind}: {done.canceled + done.ended:,} withdrawn so far.")


async def selection(
    conn: Connection, kind: str | None, supplier: str | None, org: str | None, older_than: str | None
) -> Selection:
    """The work selected by the options. Raises Invalid, NotFound."""
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
    age = holds.age(text)
    if age is None:
        raise typer.BadParameter("must be an age such as 90s, 15m, 2h or 3d", param_hint="--older-than")
    return age
