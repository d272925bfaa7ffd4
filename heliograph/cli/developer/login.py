"""`heliograph login`: remember an installation and a key for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from heliograph.cli.developer import profiles
from heliograph.cli.developer.client import Client, UrlOption, refusal
from heliograph.cli.developer.profiles import DEFAULT, Profile
from heliograph.cli.terminal.console import WRONG, DataDir, Problem
from heliograph.cli.terminal.http import address
from heliograph.cli.terminal.printing import Json, say, show


def command(
    profile: Annotated[str, typer.Option(help="Name of the profile: one for each installation and mode.")] = DEFAULT,
    url: UrlOption = None,
    key_file: Annotated[
        Path | None,
        typer.Option(show_default=False, help="File whose first line is the API key. Defaults to a prompt, or stdin."),
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Remember an installation and an API key, in a file that only you may read. Uses the API with the key.

    The key is checked first. The profile becomes the current one, which `listen`, `trigger` and `requests` use.

    \b
    Examples:
      heliograph login --url https://sms.example.com
      heliograph login --profile test --key-file key.txt
    """
    key = _key(key_file)
    base_url = address(url, data_dir)
    status, _, answer = Client(base_url, key).try_ask("GET", "/account")
    # A key without the scope for the account is a good one, too.
    if status not in (200, 403):
        raise Problem(refusal(status, answer))
    known = profiles.read()
    made = Profile(base_url, key)
    profiles.write(msgspec.structs.replace(known, current=profile, profiles=known.profiles | {profile: made}))
    name = answer["account"]["organization"]["name"] if status == 200 else None
    mode = "test" if Client(base_url, key).is_test else "live"
    show({"profile": profile, "url": base_url, "key": made.shown_key, "mode": mode, "organization": name}, json)
    say(f"Saved in {profiles.folder() / 'profiles.json'}.")


def _typed() -> str:
    """From the terminal, without echo, or from the first line of stdin."""
    if sys.stdin.isatty():
        return str(typer.prompt("API key", hide_input=True, err=True))
    return sys.stdin.readline()


def _key(path: Path | None) -> str:
    try:
        text = path.read_text() if path is not None else _typed()
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{path} cannot be read: {error}", WRONG) from None
    key = next(iter(text.splitlines()), "").strip()
    if not key.startswith(("hg_live_", "hg_test_")) or not key.isascii():
        raise Problem("this is not an API key: one begins with hg_live_ or hg_test_", WRONG)
    return key
