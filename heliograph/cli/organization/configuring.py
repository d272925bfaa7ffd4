"""`heliograph org configure`: an organization's own settings, and whether its texts are sealed."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from heliograph.accounts import organizations
from heliograph.accounts.organizations import Organization
from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import DataDir, on_database, organization, settings_of, shell
from heliograph.cli.terminal.printing import Json, as_plain, show
from heliograph.sealing import text_keys

Which = Annotated[str, typer.Argument(metavar="ORG", help="Organization, by id or name.")]


def configure(
    which: Which,
    smart_encoding: Annotated[
        bool | None,
        typer.Option(
            "--smart-encoding/--no-smart-encoding",
            show_default=False,
            help="Replace typographic characters with plain ones so that a text fits the GSM alphabet.",
        ),
    ] = None,
    replace_accents: Annotated[
        bool | None,
        typer.Option(
            "--replace-accents/--keep-accents",
            show_default=False,
            help=(
                "Send á as a where this makes a text fit the GSM alphabet and so halves its segments. "
                "Typographic characters are replaced too."
            ),
        ),
    ] = None,
    country: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGION", show_default=False, help="Country that may be sent to, repeatable; `any` allows all."
        ),
    ] = None,
    home_country: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            show_default=False,
            help="Country, such as MZ, for reading numbers without a country code; `none` rejects them.",
        ),
    ] = None,
    opt_out_word: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            show_default=False,
            help="Additional opt-out keyword, repeatable; replaces the previous ones; `none` removes them.",
        ),
    ] = None,
    stop_reply: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            show_default=False,
            help="Reply to STOP; `default` for the standard text, empty for no reply.",
        ),
    ] = None,
    start_reply: Annotated[
        str | None, typer.Option(metavar="TEXT", show_default=False, help="Reply to START, likewise.")
    ] = None,
    help_reply: Annotated[
        str | None, typer.Option(metavar="TEXT", show_default=False, help="Reply to HELP, likewise.")
    ] = None,
    reply_language: Annotated[
        str | None,
        typer.Option(
            metavar="LANGUAGE",
            show_default=False,
            help="Language of the standard replies: en, pt, fr, es or sw; `none` is that of the country.",
        ),
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option(
            metavar="ZONE",
            show_default=False,
            help="Time zone, such as Africa/Maputo, of members who chose none; `none` is UTC.",
        ),
    ] = None,
    require_factor: Annotated[
        bool | None,
        typer.Option(
            "--require-factor/--no-require-factor",
            show_default=False,
            help="Require a second factor of members: without one they see nothing of the organization.",
        ),
    ] = None,
    session_hours: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=organizations.LONGEST_SESSION,
            show_default=False,
            help="Hours without use after which members are signed out; 0 leaves it at the usual 12.",
        ),
    ] = None,
    reveal: Annotated[
        bool | None,
        typer.Option(
            "--reveal/--no-reveal",
            show_default=False,
            help="Let developers reveal the number and text of one message at a time, which is recorded.",
        ),
    ] = None,
    developer_keys: Annotated[
        bool | None,
        typer.Option(
            "--developer-keys/--no-developer-keys",
            show_default=False,
            help="Let developers create and revoke live keys, which cannot change settings or create further keys.",
        ),
    ] = None,
    seal_texts: Annotated[
        bool | None,
        typer.Option(
            "--seal-texts/--no-seal-texts",
            show_default=False,
            help="Store texts of its messages encrypted from now on, with a key that is destroyed when it is closed.",
        ),
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Change an organization's settings. Options left out stay unchanged.

    \b
    Examples:
      heliograph org configure "Acme Lda" --opt-out-word FORA --opt-out-word SAIR
      heliograph org configure "Acme Lda" --help-reply "Acme, +258 21 000 000. Reply STOP to get no more."
      heliograph org configure "Acme Lda" --country MZ --country ZA --home-country MZ
      heliograph org configure "Acme Lda" --require-factor --session-hours 8 --time-zone Africa/Maputo
      heliograph org configure "Acme Lda" --seal-texts
    """
    settings = settings_of(data_dir, needs_key=seal_texts is True)

    async def work(conn: Connection) -> dict[str, object]:
        found = await organization(conn, which)
        async with conn.transaction():
            if seal_texts is not None:
                await text_keys.switch(conn, organization_id=found.id, on=seal_texts, by=shell())
            changed = await organizations.configure(
                conn,
                id=found.id,
                smart_encoding=smart_encoding,
                replace_accents=replace_accents,
                allowed_countries=countries(country),
                opt_out_words=[] if opt_out_word == ["none"] else opt_out_word or None,
                stop_reply=_optional(stop_reply, none="default"),
                start_reply=_optional(start_reply, none="default"),
                help_reply=_optional(help_reply, none="default"),
                reply_language=_optional(reply_language),
                time_zone=_optional(time_zone),
                factor_required=require_factor,
                session_hours=msgspec.UNSET if session_hours is None else session_hours or None,
                reveals=reveal,
                developer_keys=developer_keys,
                country=_optional(home_country),
                by=shell(),
            )
        return await shown(conn, changed)

    show(on_database(work, settings), json)


def countries(given: list[str] | None) -> list[str] | msgspec.UnsetType | None:
    """Countries in the form expected by `organizations`; `any` means all. Raises BadParameter."""
    if not given:
        return msgspec.UNSET
    return None if given == ["any"] else _regions(given)


def _regions(given: list[str]) -> list[str]:
    regions = [one.upper() for one in given]
    for one in regions:
        if said := phones.no_country(one):
            raise typer.BadParameter(said)
    return regions


def _optional(given: str | None, *, none: str = "none") -> str | msgspec.UnsetType | None:
    """A value in the form expected by `organizations.configure`: unchanged if it is left out, None if it is `none`."""
    if given is None:
        return msgspec.UNSET
    return None if given == none else given


async def shown(conn: Connection, found: Organization) -> dict[str, object]:
    """The organization, and whether its texts are sealed."""
    return as_plain(found) | {"texts": as_plain(await text_keys.get(conn, organization_id=found.id))}
