"""`heliograph audit`: who changed what."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any, TextIO

import typer

from heliograph.audit import exporting, reading
from heliograph.audit.actions import ACTIONS
from heliograph.audit.reading import Filter
from heliograph.base.database.pool import Connection
from heliograph.base.sentences import with_noun
from heliograph.cli.terminal.console import DataDir, OrgOrAll, moment, on_database, only, settings_of, shell
from heliograph.cli.terminal.files import OutFile, writable, writing
from heliograph.cli.terminal.printing import Json, as_plain, group, in_utf8, say, show
from heliograph.cli.terminal.reports import on_reader

app = group("List and export the audit log: who changed what, when and from where.")

COLUMNS = ("at", "who", "who_name", "action", "object_name", "object_id", "before", "after", "reason", "address")
ByWhom = Annotated[
    str | None,
    typer.Option(
        "--who",
        metavar="WHO",
        show_default=False,
        help=f"Only actions of one kind of actor ({', '.join(reading.KINDS)}), or of one, by id or name.",
    ),
]
Action = Annotated[
    str | None,
    typer.Option(
        metavar="ACTION",
        show_default=False,
        help="Only one action, such as api_key.created, or all of one kind of object, such as api_key.",
    ),
]
Object = Annotated[
    str | None,
    typer.Option("--object", metavar="ID|NAME", show_default=False, help="Only entries about this object."),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="WHEN", show_default=False, help="Start, with a time zone: 2027-01-01T00:00:00Z."),
]
To = Annotated[str | None, typer.Option("--to", metavar="WHEN", show_default=False, help="End, exclusive, likewise.")]


@app.command("list")
def list_(
    who: ByWhom = None,
    action: Action = None,
    what: Object = None,
    since: From = None,
    until: To = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 50,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List entries, newest first: of all organizations and the installation, or of one organization.

    \b
    Examples:
      heliograph audit list --limit 20
      heliograph audit list --org "Acme Lda" --action api_key
      heliograph audit list --who cli --from 2027-01-01T00:00:00Z
    """

    async def work(conn: Connection) -> list[dict[str, Any]]:
        wanted = await _filter(conn, org, who, action, what, since, until)
        found = [one async for page in reading.everything(conn, wanted, limit=limit) for one in page]
        return [as_plain(reading.as_values(one)) for one in found]

    rows = on_reader(work, settings_of(data_dir))
    if not json:
        for row in rows:
            row["action"] = ACTIONS.get(row["action"], row["action"])
    show(rows, json, COLUMNS, limit=limit)


@app.command("export")
def export(
    file: OutFile = None,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object per line instead of CSV.")] = False,
    who: ByWhom = None,
    action: Action = None,
    what: Object = None,
    since: From = None,
    until: To = None,
    org: OrgOrAll = None,
    data_dir: DataDir = None,
) -> None:
    """Export entries, newest first. The file is readable only by you, and the export itself is recorded.

    \b
    Examples:
      heliograph audit export audit.csv --org "Acme Lda"
      heliograph audit export --json --from 2027-01-01T00:00:00Z > audit.jsonl
    """
    if file is not None:
        writable(file)

    async def work(conn: Connection) -> int:
        wanted = await _filter(conn, org, who, action, what, since, until)
        with contextlib.ExitStack() as stack:
            out: TextIO = in_utf8()
            if file is not None:
                encoding = "utf-8" if json else "utf-8-sig"
                out = stack.enter_context(writing(file, encoding=encoding))
            return await exporting.write(conn, shell(), wanted, file=out, as_json=json)

    say(f"{with_noun(on_database(work, settings_of(data_dir)), 'entry', 'entries')}.")


async def _filter(
    conn: Connection,
    org: str | None,
    who: str | None,
    action: str | None,
    what: str | None,
    since: str | None,
    until: str | None,
) -> Filter:
    return Filter(
        organization_id=await only(conn, org),
        who=who,
        action=action,
        object=what,
        date_from=None if since is None else moment(since, "--from"),
        date_to=None if until is None else moment(until, "--to"),
    )
