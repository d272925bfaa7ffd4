"""`heliograph login`: stores an installation and a key for it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from heliograph.accounts.api_keys.scopes import ScopeRequired
from heliograph.base.network.failures import reason
from heliograph.cli.developer import profiles
from heliograph.cli.developer.client import Client, UpDir, refusal
from heliograph.cli.developer.profiles import DEFAULT, Profile, Profiles
from heliograph.cli.terminal.asking import line_on_stdin
from heliograph.cli.terminal.console import WRONG, Problem, demand_directory
from heliograph.cli.terminal.files import BYTE_ORDER_MARK
from heliograph.cli.terminal.http import address, foreign
from heliograph.cli.terminal.printing import Json, say, show


def command(
    profile: Annotated[str, typer.Option(help="Name of the profile: one for each installation and mode.")] = DEFAULT,
    url: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help=(
                "URL of the API. Defaults to the one that this profile has; for a new profile to that of `heliograph "
                "up`, or else http://127.0.0.1:8080."
            ),
        ),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(show_default=False, help="File whose first line is the API key. Defaults to a prompt, or stdin."),
    ] = None,
    json: Json = False,
    data_dir: UpDir = None,
) -> None:
    """Remember an installation and an API key, in a file that only you may read. Uses the API with the key.

    The key is checked first. The profile becomes the current one, which `send`, `call`, `listen`, `trigger`, `logs` and
    `requests` use.

    \b
    Examples:
      heliograph login --url https://sms.example.com
      heliograph login --profile test --key-file key.txt
    """
    if not profile.strip():
        raise typer.BadParameter("must not be empty", param_hint="--profile")
    demand_directory(data_dir)
    before = profiles.read().profiles.get(profile)
    base_url = address(before.url if url is None and before is not None else url, data_dir)
    if re.search("[@?#]", base_url):
        raise Problem("--url must be the address alone, without a user name, password, query or fragment", WRONG)
    key = _key(key_file)
    name = _organization(Client(base_url, key))
    made = Profile(base_url, key)
    profiles.change(lambda known: Profiles(current=profile, profiles=known.profiles | {profile: made}))
    mode = "test" if Client(base_url, key).is_test else "live"
    show({"profile": profile, "url": base_url, "key": made.shown_key, "mode": mode, "organization": name}, json)
    say(f"Saved in {profiles.folder() / 'profiles.json'}.")
    if why := profiles.passed_over(profile):
        say(why)


def _organization(api: Client) -> str | None:
    """The organization of the key; None: the key may not read it. Raises Problem if the key is refused, or the server
    is not Heliograph."""
    status, _, answer = api.try_ask("GET", "/account")
    match (status, answer):
        case (200, {"account": {"organization": {"name": str(name)}}}):
            return name
        case (403, {"error": {"code": ScopeRequired.code}}):
            # A key without the scope for the account is valid, too.
            return None
        case (_, {"error": {"code": str(), "message": str()}}) if status >= 400:
            raise Problem(refusal(status, answer))
    raise Problem(f"{foreign(api.base_url)}: nothing was saved; give its URL with --url")


def _typed() -> str:
    """A key from the terminal, without echo, or from the first line of stdin."""
    if sys.stdin.isatty():
        return str(typer.prompt("API key", hide_input=True, err=True))
    return line_on_stdin()


def _key(path: Path | None) -> str:
    try:
        text = path.read_text("utf-8") if path is not None else _typed()
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{path} cannot be read: {reason(error)}", WRONG) from None
    key = next(iter(text.removeprefix(BYTE_ORDER_MARK).splitlines()), "").strip()
    if not key.startswith(("hg_live_", "hg_test_")) or not key.isascii():
        raise Problem("this is not an API key: keys begin with hg_live_ or hg_test_", WRONG)
    return key
