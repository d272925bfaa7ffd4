"""The command line: one module per noun. It contains no rules: each command calls the same function as the API.

A noun's module is loaded when it is used: all of them together take 0.3 s, which every worker, web process and
operator's command would pay at its start.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
from difflib import get_close_matches
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.completion import completion_init
from typer.core import TyperCommand, TyperGroup

from heliograph import __version__
from heliograph.cli.terminal.console import run
from heliograph.cli.terminal.printing import Group, group, single

#: Commands in the order of the help text, each with the package of its module, which has `app` (the commands of a noun)
#: or `command` (a single command).
ROOMS = {
    "up": "running",
    "api": "running",
    "worker": "running",
    "workers": "running",
    "migrate": "running",
    "send": "developer",
    "doctor": "running",
    "guide": "developer",
    "call": "developer",
    "backup": "running",
    "restore": "running",
    "rekey": "running",
    "audit": "running",
    "org": "organization",
    "key": "organization",
    "user": "organization",
    "installation": "organization",
    "mail": "running",
    "sender": "organization",
    "supplier": "traffic",
    "rates": "money",
    "prices": "money",
    "route": "traffic",
    "rule": "traffic",
    "lookup": "money",
    "margin": "money",
    "billing": "money",
    "quota": "organization",
    "usage": "organization",
    "contacts": "audience",
    "person": "audience",
    "tag": "audience",
    "campaign": "audience",
    "message": "traffic",
    "queue": "traffic",
    "hold": "traffic",
    "guard": "traffic",
    "inbound": "traffic",
    "receipts": "traffic",
    "optout": "audience",
    "webhook": "",
    "whatsapp": "",
    "simulate": "running",
    "login": "developer",
    "profile": "developer",
    "listen": "developer",
    "trigger": "developer",
    "logs": "developer",
    "requests": "developer",
    "completion": "developer",
}


def module_of(noun: str) -> ModuleType:
    """Load the module of a command."""
    return importlib.import_module(".".join(filter(None, ("heliograph.cli", ROOMS[noun], noun))))


class Nouns(Group):
    """The commands of ROOMS."""

    def list_commands(self, ctx: object) -> list[str]:
        """Their names."""
        return list(ROOMS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command named by the arguments. A misspelled one is refused with similar names."""
        # During completion (`resilient_parsing`), a message would appear in the middle of the line being typed.
        if args and args[0] not in ROOMS and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(args[0], list(ROOMS), cutoff=0.5)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """Load the command."""
        if cmd_name not in ROOMS:
            return None
        module = module_of(cmd_name)
        if not gc.isenabled():  # `main` has disabled it
            gc.freeze()
            gc.enable()
        command: TyperCommand | TyperGroup
        if hasattr(module, "app"):
            command = typer.main.get_group(module.app)
        else:
            command = typer.main.get_command(single(cmd_name, module.command))  # type: ignore[assignment]
        command.name = cmd_name
        return command


HELP = """Heliograph, the messaging platform that organizations run themselves.

For developers, over the API with a key: send, call, login, profile, listen, trigger, logs, requests. These need
neither a key nor a database: guide, completion, simulate. All others are for operators: they use the database, need its
URL or data directory, and ask for no key.
"""
app = group(HELP, cls=Nouns)


def _version(is_asked: bool) -> None:
    if is_asked:
        print(f"heliograph {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Does nothing itself: the command follows."""


def main() -> None:
    """Run the command named by `sys.argv`; ends the process."""
    # What is imported stays until the end and is hardly ever garbage. Examining it meanwhile and again at exit takes a
    # third of a short command's processor time, and a sixth of a web process's start.
    gc.disable()
    atexit.register(gc.freeze)
    if "_HELIOGRAPH_COMPLETE" in os.environ:
        completion_init()
    run(app)
