"""`heliograph supplier`: the accounts that carry messages. Workers apply a change within a second.

It has over 400 lines because it lists all commands of a noun, and most of it is their help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints
from uuid import UUID

import msgspec
import typer

from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings, SettingsError
from heliograph.base.sentences import Sentence
from heliograph.cli.terminal.asking import confirm, typed_secret
from heliograph.cli.terminal.console import DataDir, on_database, settings_of, shell
from heliograph.cli.terminal.printing import Json, as_plain, group, say, show
from heliograph.cli.traffic import supplier_kinds, supplier_trial
from heliograph.cli.traffic.supplier_kinds import usage
from heliograph.sms.callbacks import addresses
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.management import changing, options
from heliograph.sms.management.options import written
from heliograph.sms.reports import words as receipt_words
from heliograph.suppliers import kinds
from heliograph.suppliers.http.kind import SECRET, HttpKind

app = group("Add, list, test, change, pause, resume and remove suppliers, the accounts that carry SMS.")
add = group("Add a supplier.")
app.add_typer(add, name="add")

COLUMNS = (
    "name",
    "state",
    "live",
    "address",
    "system_id",
    "sessions",
    "leased",
    "bound",
    "priority",
    "weight",
    "prefixes",
)
CHANGES = ("setting", "before", "after")
#: Options of `add` that all kinds have.
COMMON = ("name", "password", "sessions", "prefix", "priority", "weight", "simulator", "json", "data_dir")
Which = Annotated[str, typer.Argument(metavar="SUPPLIER", help="Supplier, by name or id.")]


def add_smpp(
    name: Annotated[str, typer.Argument(help="Your name for the supplier.")],
    host: Annotated[
        list[str], typer.Option(metavar="HOST", help="Host name or IP address. Repeatable: several are tried in turn.")
    ],
    system_id: Annotated[str, typer.Option(help="system_id of the account.")],
    password: Annotated[
        str | None,
        typer.Option(
            metavar="SECRET",
            show_default=False,
            envvar="HELIOGRAPH_SUPPLIER_PASSWORD",
            help=(
                "Password of the account. If omitted, it is prompted for or read from stdin; command lines "
                "are visible to other users of this machine."
            ),
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port.")] = 2775,
    tls: Annotated[
        bool, typer.Option(help="Whether to use TLS. Without it, the password is sent in clear text.")
    ] = True,
    bind: Annotated[
        Literal["transceiver", "pair"],
        typer.Option(help="Bind each session as one transceiver, or as a transmitter and a receiver."),
    ] = "transceiver",
    sessions: Annotated[
        int, typer.Option(min=1, max=1000, help="Maximum number of sessions of the account, over all workers.")
    ] = 1,
    window: Annotated[int, typer.Option(min=1, help="Maximum unanswered submits per session.")] = 10,
    rate: Annotated[float, typer.Option(min=0, help="Maximum segments per second and session; 0: unlimited.")] = 0.0,
    prefix: Annotated[
        list[str] | None,
        typer.Option(metavar="DIGITS", help="Carry only numbers with this prefix (258, no +). Repeatable."),
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=1000, help="Priority; the lowest number is tried first.")] = 10,
    weight: Annotated[int, typer.Option(min=1, max=1000, help="Share among suppliers of equal priority.")] = 1,
    parts: Annotated[
        Literal["all", "any", "first", "last"],
        typer.Option(help="Which part's receipt decides the status of a message of several parts."),
    ] = "all",
    simulator: Annotated[
        bool,
        typer.Option("--simulator", help="A simulator: used only while there is no other supplier."),
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as `heliograph supplier options` lists them."),
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Add an SMPP 3.4 account.

    \b
    Examples:
      heliograph supplier add smpp main --host smpp.example.net --port 3550 --system-id acme --sessions 2
      heliograph supplier add smpp local --host 127.0.0.1 --no-tls --system-id heliograph --password secret
      heliograph supplier add smpp mz --host 10.0.0.5 --no-tls --system-id a --prefix 258 --dlr-id-base hex
    """
    values: dict[str, Any] = {
        "host": host[0] if len(host) == 1 else host,
        "port": port,
        "system_id": system_id,
        "tls": tls,
        "bind": bind,
        "window": window,
        "submits_per_second": rate,
    }
    for pair in set_ or ():
        with usage():
            options.apply(values, pair, kinds.SMPP)
    try:
        kinds.settings_from(kinds.SMPP, values)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    secret = password or typed_secret()
    common = {"name": name, "sessions": sessions, "prefix": prefix, "priority": priority, "weight": weight}
    _add(kinds.SMPP, values, secret, common | {"parts": parts, "simulator": simulator}, json, data_dir)


def _add(
    kind: str, values: dict[str, Any], secret: str, common: dict[str, Any], json: bool, data_dir: Path | None
) -> None:
    settings = settings_of(data_dir, needs_key=True)

    async def work(conn: Connection) -> dict[str, Any]:
        id = await suppliers.add(
            conn,
            suppliers.seal_key(settings),
            name=common["name"],
            kind=kind,
            settings=values,
            secret=secret,
            prefixes=tuple(common["prefix"] or ()),
            priority=common["priority"],
            weight=common["weight"],
            sessions=common["sessions"],
            parts=common["parts"],
            simulated=common["simulator"],
            by=shell(),
        )
        return await _find(conn, str(id), settings)

    show(on_database(work, settings), json)


def _add_http(kind: HttpKind, values: dict[str, Any], secrets: dict[str, str], given: dict[str, Any]) -> None:
    """Add a supplier of an HTTP kind, once its settings have been parsed."""
    json, data_dir, first = given.pop("json"), given.pop("data_dir"), given.pop("password")
    sealed = msgspec.json.encode({SECRET: first or typed_secret(kind.secrets[SECRET])} | secrets).decode()
    _add(kind.name, values, sealed, given | {"parts": "all"}, json, data_dir)


def _common(command: Callable[..., None]) -> list[inspect.Parameter]:
    """Options of `add` that all kinds of suppliers share."""
    hints = get_type_hints(command, include_extras=True)
    return [
        one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, one in inspect.signature(command).parameters.items()
        if name in COMMON
    ]


#: Settings for which `add smpp` has options of its own. `--priority` is the supplier's; `priority_flag` needs `--set`.
BY_HAND = ("host", "port", "system_id", "tls", "bind", "window", "submits_per_second", "priority")
add.command("smpp")(supplier_kinds.completed(add_smpp, kinds.SMPP, BY_HAND))
# The commands for suppliers over HTTP.
supplier_kinds.register(add, _common(add_smpp), _add_http)


@app.command("options")
def list_options(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(kinds.SETTINGS)}.")] = kinds.SMPP,
    json: Json = False,
) -> None:
    """List every setting of a kind of supplier, with its default and meaning.

    \b
    Examples:
      heliograph supplier options
      heliograph supplier options twilio
    """
    if kind not in kinds.SETTINGS:
        raise typer.BadParameter(f"must be one of {', '.join(kinds.SETTINGS)}", param_hint="KIND")
    defaults = {
        field.name: None if field.default is msgspec.NODEFAULT else field.default for field in kinds.fields(kind)
    }
    rows = [
        {"setting": name, "default": written(defaults[name]), "meaning": meaning}
        for name, (_, meaning) in options.fields(kind).items()
    ]
    show(rows, json, ("setting", "default", "meaning"))


@app.command("list")
def list_(json: Json = False, data_dir: DataDir = None) -> None:
    """List suppliers: their state, and the sessions that workers hold and have bound.

    \b
    Example:
      heliograph supplier list
    """
    settings = settings_of(data_dir)
    rows = on_database(lambda conn: _all(conn, settings), settings)
    show(rows, json, COLUMNS)
    if not json:
        for row in rows:
            if row["last_error"]:
                say(f"{row['name']}: {row['last_error']}")


@app.command("show")
def show_(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Show a supplier with all its settings except the password, unknown states in its receipts, and the codes of its
    negative answers with how each was interpreted.

    \b
    Example:
      heliograph supplier show main
    """

    settings = settings_of(data_dir)

    async def work(conn: Connection) -> dict[str, Any]:
        found = await _find(conn, which, settings)
        words = (await receipt_words.unknown_states(conn)).get(UUID(found["id"]), [])
        known = next(one for one in await routing.load(conn) if str(one.id) == found["id"])
        codes = await receipt_words.answer_codes(conn, known)
        return found | {
            "unknown_words": {one.word: one.count for one in words},
            "answer_codes": {f"{one.code} {one.verdict} {one.kind}".strip(): one.count for one in codes},
        }

    show(on_database(work, settings), json)


@app.command("set")
def set_(
    which: Which,
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help=(
                "A setting from `heliograph supplier options`, or name, prefixes, priority, weight, "
                "sessions, parts, simulated. To set one entry of a mapping, use KEY.ENTRY=VALUE; an empty "
                "value restores the default."
            ),
        ),
    ] = None,
    password: Annotated[
        str | None,
        typer.Option(
            metavar="SECRET",
            show_default=False,
            help="New password; command lines are visible to other users of this machine.",
        ),
    ] = None,
    ask_password: Annotated[
        bool, typer.Option("--ask-password", help="Prompt for a new password, or read it from stdin.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Change a supplier, and show what changed. Workers pick it up within a second; receipts for earlier messages still
    match.

    \b
    Examples:
      heliograph supplier set main rate=50 window=20
      heliograph supplier set main --ask-password
      heliograph supplier set main prefixes=258,244 final_states.ACCEPTD=delivered tls_server_name=
    """
    if not pairs and password is None and not ask_password:
        raise typer.BadParameter("say what to change: KEY=VALUE, or --ask-password")
    settings = settings_of(data_dir, needs_key=True)
    secret = typed_secret() if ask_password and password is None else password

    def wanted(before: Supplier) -> tuple[Supplier, dict[str, str]]:
        plain, secrets = options.split_secrets(before.kind, pairs or ())
        return options.changed(before, plain), secrets | ({} if secret is None else {SECRET: secret})

    async def work(conn: Connection) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        with usage():
            done = await changing.change(conn, suppliers.seal_key(settings), supplier=which, wanted=wanted, by=shell())
        return await _find(conn, str(done.supplier.id), settings), done.differences

    found, changes = on_database(work, settings)
    if json:
        show(found | {"changes": changes}, json)
    elif changes:
        show([{name: written(value) for name, value in one.items()} for one in changes], json, CHANGES)
    else:
        say(f"{found['name']} is unchanged.")


app.command("test")(supplier_trial.command)
app.command("watch")(supplier_trial.watch)


@app.command("pause")
def pause(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Pause a supplier: nothing is sent through it until it is resumed.

    \b
    Example:
      heliograph supplier pause main
    """
    _set_state(which, "paused", json, data_dir)


@app.command("resume")
def resume(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Resume a paused supplier.

    \b
    Example:
      heliograph supplier resume main
    """
    _set_state(which, "active", json, data_dir)


@app.command("drain")
def drain(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Send nothing more to a supplier, but keep its sessions for responses and receipts, until it is resumed or paused.

    \b
    Example:
      heliograph supplier drain main
    """
    _set_state(which, "draining", json, data_dir)


@app.command("reset-circuit")
def reset_circuit(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Have all workers try an avoided supplier again now. They avoid it again if it still fails.

    \b
    Example:
      heliograph supplier reset-circuit main
    """
    settings = settings_of(data_dir)

    async def work(conn: Connection) -> dict[str, Any]:
        id = await suppliers.reset_circuit(conn, supplier=which, by=shell())
        return await _find(conn, str(id), settings)

    show(on_database(work, settings), json)


@app.command("remove")
def remove(
    which: Which,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Remove a supplier and its password permanently. Records of the messages it carried are kept.

    \b
    Example:
      heliograph supplier remove main --yes
    """
    settings = settings_of(data_dir)
    if not yes:
        on_database(lambda conn: suppliers.id_of(conn, which), settings)
        confirm(f"Remove supplier {which}?")

    async def work(conn: Connection) -> dict[str, Any]:
        before = await _find(conn, which, settings)
        await suppliers.set_state(conn, supplier=which, state="removed", by=shell())
        return before | {"state": "removed"}

    show(on_database(work, settings), json)


def _set_state(which: str, state: str, json: bool, data_dir: DataDir) -> None:
    settings = settings_of(data_dir)

    async def work(conn: Connection) -> dict[str, Any]:
        id = await suppliers.set_state(conn, supplier=which, state=state, by=shell())
        return await _find(conn, str(id), settings)

    show(on_database(work, settings), json)


async def _all(conn: Connection, settings: Settings) -> list[dict[str, Any]]:
    held = await suppliers.sessions(conn)
    known = await routing.load(conn)
    serve = {one.id for one in routing.serving(known)}
    return [_shown(one, held, one.id in serve, settings) for one in known]


async def _find(conn: Connection, which: str, settings: Settings) -> dict[str, Any]:
    id = str(await suppliers.id_of(conn, which))
    return next(row for row in await _all(conn, settings) if row["id"] == id)


def _shown(
    one: Supplier, held: dict[UUID, tuple[int, int, Sentence]], serves: bool, settings: Settings
) -> dict[str, Any]:
    """A supplier as operators see it: everything except its password. `live`: what happens to live messages there."""
    leased, bound, error = held.get(one.id, suppliers.UNHELD)
    row: dict[str, Any] = as_plain(one)
    del row["secret"], row["holds"]  # `hold list` shows holds, with what they mean
    return row | {
        "live": "sent" if not one.simulated else "simulated" if serves else "none",
        "address": _address(one),
        "system_id": one.settings.get("system_id"),
        "callbacks": addresses.address(settings, one.id) or None if one.kind in kinds.HTTP else None,
        "leased": leased,
        "bound": bound,
        "last_error": str(error) or None,
    }


def _address(one: Supplier) -> str:
    if one.kind in kinds.HTTP:
        return str(kinds.settings_from(one.kind, one.settings).base_url)
    host = one.settings.get("host")
    return f"{host if isinstance(host, str) else ','.join(host or ())}:{one.settings.get('port')}"
