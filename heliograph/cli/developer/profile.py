"""`heliograph profile`: the installations stored by `heliograph login`."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from heliograph.cli.developer import profiles
from heliograph.cli.developer.profiles import Profiles
from heliograph.cli.terminal.console import Problem
from heliograph.cli.terminal.printing import Json, group, say, show

app = group("List, choose and remove the installations that `heliograph login` remembers.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the profile.")]


@app.command("list")
def list_(json: Json = False) -> None:
    """List the profiles, with shortened keys.

    \b
    Example:
      heliograph profile list
    """
    known = profiles.read()
    shown = [
        {"profile": name, "url": one.url, "key": one.shown_key, "is_current": name == known.current}
        for name, one in sorted(known.profiles.items())
    ]
    show(shown, json, ("profile", "url", "key", "is_current"))


@app.command("use")
def use(name: Name, json: Json = False) -> None:
    """Make a profile the current one.

    \b
    Example:
      heliograph profile use production
    """

    def chosen(known: Profiles) -> Profiles:
        profiles.get(name)
        return msgspec.structs.replace(known, current=name)

    profiles.change(chosen)
    show([{"profile": name, "is_current": True}], json, ("profile", "is_current"))
    if why := profiles.passed_over(name):
        say(why)


@app.command("remove")
def remove(name: Name, json: Json = False) -> None:
    """Forget a profile with its key. The key itself stays valid: `heliograph key revoke` ends it.

    \b
    Example:
      heliograph profile remove test
    """

    def without(known: Profiles) -> Profiles:
        if name not in known.profiles:
            raise Problem(f"there is no profile {name!r}")
        left = {other: one for other, one in known.profiles.items() if other != name}
        return msgspec.structs.replace(known, profiles=left)

    profiles.change(without)
    show([{"profile": name, "removed": True}], json, ("profile", "removed"))
    say("Its API key stays valid until it is revoked.")
