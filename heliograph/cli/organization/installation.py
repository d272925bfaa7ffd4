"""`heliograph installation`: settings of the whole installation."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.accounts import installation
from heliograph.accounts.installation import Installation
from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import DataDir, on_database, settings_of, shell
from heliograph.cli.terminal.printing import Json, group, in_options, show

app = group("Show and change settings of the whole installation: name, announcement, links and the four-eyes rule.")


@app.command("show")
def show_all(json: Json = False, data_dir: DataDir = None) -> None:
    """Show the settings of the installation.

    \b
    Example:
      heliograph installation show
    """
    show(on_database(installation.load, settings_of(data_dir)), json)


@app.command("set")
def set_(
    name: Annotated[str | None, typer.Option(show_default=False, help="Name shown in both apps.")] = None,
    announcement: Annotated[
        str | None, typer.Option(show_default=False, help="Shown above every page of both apps.")
    ] = None,
    announcement_until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", show_default=False, help="When the announcement disappears automatically."
        ),
    ] = None,
    four_eyes: Annotated[
        bool | None,
        typer.Option(
            "--four-eyes/--two-eyes",
            show_default=False,
            help="Whether a sender ID needs the approval of two operators.",
        ),
    ] = None,
    receipts_mail: Annotated[
        bool | None,
        typer.Option(
            "--receipts-mail/--no-receipts-mail",
            show_default=False,
            help="Whether operators are mailed the receipts of each day.",
        ),
    ] = None,
    new_quota: Annotated[
        str | None,
        typer.Option(metavar="MESSAGES", show_default=False, help="Quota of organizations created without one."),
    ] = None,
    terms_url: Annotated[
        str | None, typer.Option(metavar="URL", show_default=False, help="Linked at the foot of the dashboard.")
    ] = None,
    privacy_url: Annotated[
        str | None, typer.Option(metavar="URL", show_default=False, help="Linked at the foot of the dashboard.")
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Change the given settings; an empty value restores the default. Every process applies them within two seconds.

    \b
    Examples:
      heliograph installation set --name "Acme Messaging"
      heliograph installation set --announcement "Maintenance on Sunday" --until 2027-01-31T18:00Z
      heliograph installation set --announcement "" --until ""
      heliograph installation set --four-eyes
    """
    options = {
        "name": name,
        "announcement": announcement,
        "announcement_until": announcement_until,
        "four_eyes": None if four_eyes is None else str(four_eyes).lower(),
        "receipts_mail": None if receipts_mail is None else str(receipts_mail).lower(),
        "new_quota": new_quota,
        "terms_url": terms_url,
        "privacy_url": privacy_url,
    }
    given = {option: value for option, value in options.items() if value is not None}
    if not given:
        raise typer.BadParameter("say what to set, such as --name or --announcement")

    async def work(conn: Connection) -> Installation:
        return await installation.change(conn, shell(), given)

    with in_options(announcement_until="--until"):
        changed = on_database(work, settings_of(data_dir))
    show(changed, json)
