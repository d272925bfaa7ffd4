"""The command line: one module per noun. It contains no rules: each command calls the same function as the API.

A noun's module is loaded when it is used: all of them together take a second, which every worker, web process and
operator's command would pay at its start, and so would a list of them.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
from difflib import get_close_matches
from types import ModuleType
from typing import Annotated, Any

import msgspec
import typer
from typer.completion import completion_init
from typer.core import TyperCommand, TyperGroup

from heliograph import __version__
from heliograph.cli.terminal.console import run
from heliograph.cli.terminal.printing import Group, group, single


class Noun(msgspec.Struct, frozen=True):
    """A command, or the commands of a noun."""

    #: The package of its module, which has `app` (the commands of a noun) or `command` (a single command).
    room: str
    #: The first sentence of its help, so that listing commands and completing them load no module.
    summary: str


#: Commands in the order of the help text.
NOUNS = {
    "up": Noun(
        "running",
        "Start PostgreSQL, the API, a worker, a simulated SMSC and a simulation of Meta's Cloud API, with an"
        " organization that can send SMS and WhatsApp messages right away.",
    ),
    "api": Noun("running", "Serve the HTTP API."),
    "worker": Noun("running", "Send messages, process receipts and deliver webhooks."),
    "workers": Noun("running", "List workers, drain and resume them."),
    "migrate": Noun("running", "Migrate the database to this version."),
    "send": Noun("developer", "Send one SMS."),
    "doctor": Noun(
        "running",
        "Check settings, database, backups, workers, suppliers, WhatsApp accounts, queue, inbox, callbacks and API.",
    ),
    "guide": Noun(
        "developer",
        "Show the guide, the errors and the API reference in a browser: searchable, without a network or a database.",
    ),
    "call": Noun("developer", "Call any operation of the API with a key, and print its response as JSON."),
    "backup": Noun("running", "Take, list and verify backups."),
    "restore": Noun("running", "Restore a backup into an empty place."),
    "rekey": Noun("running", "Encrypt everything stored under the current secret key."),
    "audit": Noun("running", "List and export the audit log: who changed what, when and from where."),
    "org": Noun("organization", "Create, show, rename, configure, suspend and resume organizations, and assign plans."),
    "key": Noun("organization", "Create, list, rotate, rename, suspend, resume and revoke API keys."),
    "user": Noun(
        "organization",
        "Create, invite, list and remove users of the dashboard and operators, and create sign-in links for them.",
    ),
    "installation": Noun(
        "organization",
        "Show and change settings of the whole installation: name, announcement, links and the four-eyes rule.",
    ),
    "mail": Noun("running", "Test the SMTP server that sends invitations and password resets."),
    "sender": Noun(
        "organization",
        "Request, approve, reject, suspend and list sender IDs, set the default, and keep registrations.",
    ),
    "supplier": Noun(
        "traffic", "Add, list, test, change, pause, resume and remove suppliers, the accounts that carry SMS."
    ),
    "rates": Noun("money", "Import and show rate cards: what suppliers charge for SMS."),
    "prices": Noun("money", "Import, show and assign price lists: what organizations pay for SMS."),
    "route": Noun(
        "traffic",
        "Add, list, change, pause, remove and restore routes, which choose suppliers, and explain their choice.",
    ),
    "rule": Noun("traffic", "Set, list and remove suppliers' rules for senders and numbers."),
    "lookup": Noun(
        "money",
        "Add, list, try, change, pause, resume and remove suppliers of number look-ups, and show what they cost.",
    ),
    "margin": Noun(
        "money",
        "Show prices, costs and margins of live SMS accepted by suppliers, by the day on which they became due.",
    ),
    "billing": Noun("money", "Lock months for billing, and export what all organizations used in them."),
    "quota": Noun(
        "organization",
        "Grant, adjust and show the message quota of an organization, and set which failures are refunded.",
    ),
    "usage": Noun("organization", "Show an organization's usage by month, and export the bill of a month."),
    "contacts": Noun("audience", "Import, export, list, find and delete contacts, and undo an import."),
    "person": Noun("audience", "Export or erase the data held about a person."),
    "tag": Noun("audience", "List, rename, merge and remove tags of contacts."),
    "campaign": Noun("audience", "Create, list, show, watch, pause, resume and cancel campaigns."),
    "message": Noun(
        "traffic", "List an organization's messages, show the history of one, and decide about one that is stuck."
    ),
    "queue": Noun("traffic", "List, hurry and withdraw queued work."),
    "hold": Noun("traffic", "List holds of outgoing work, add and release them."),
    "guard": Noun(
        "traffic", "List, release and withdraw messages held as suspicious, and set an organization's rules."
    ),
    "inbound": Noun("traffic", "List inbound messages, and retry those not assigned to an organization."),
    "receipts": Noun(
        "traffic", "Reconcile what suppliers were handed with what they reported, and unmatched receipts."
    ),
    "optout": Noun("audience", "List, export, add and remove opt-outs of an organization."),
    "webhook": Noun(
        "",
        "Create, show, change, pause and disable webhook endpoints; see attempts, resend, replay, test, rotate, catch.",
    ),
    "whatsapp": Noun("", "WhatsApp accounts, numbers, templates, wallets, rates, campaigns and callbacks from Meta."),
    "simulate": Noun("running", "Simulate a supplier's SMSC, Meta's Graph API, or a customer's webhook receiver."),
    "login": Noun("developer", "Remember an installation and an API key, in a file that only you may read."),
    "profile": Noun("developer", "List, choose and remove the installations that `heliograph login` remembers."),
    "listen": Noun("developer", "Print events as they happen, and forward them to a program on this machine."),
    "trigger": Noun(
        "developer",
        "Make an event happen in test mode: a message to a test number, or a test event for each active endpoint.",
    ),
    "logs": Noun(
        "developer",
        "Print the latest requests that changed something or were refused, oldest first, and follow them with -f.",
    ),
    "requests": Noun("developer", "Requests that changed something or were refused, from the API's log."),
    "completion": Noun("developer", "Print a script that completes commands and options."),
}


def module_of(noun: str) -> ModuleType:
    """Load the module of a command."""
    return importlib.import_module(".".join(filter(None, ("heliograph.cli", NOUNS[noun].room, noun))))


class Nouns(Group):
    """The commands of NOUNS."""

    def list_commands(self, ctx: object) -> list[str]:
        """Their names."""
        return list(NOUNS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list, wrapped."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, noun.summary) for name, noun in NOUNS.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a command or an option."""
        commands = [TyperCommand(name, callback=None, help=noun.summary) for name, noun in NOUNS.items()]
        listed = TyperGroup(name=self.name, commands=commands, params=self.params)
        return listed.shell_complete(typer.Context(listed), incomplete)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command named by the arguments. A misspelled one is refused with similar names."""
        # During completion (`resilient_parsing`), a message would appear in the middle of the line being typed.
        if args and args[0] not in NOUNS and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = get_close_matches(args[0], list(NOUNS), cutoff=0.5)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """Load the command."""
        if cmd_name not in NOUNS:
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
