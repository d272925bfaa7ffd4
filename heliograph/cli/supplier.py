"""`heliograph supplier`: the accounts that carry messages. Workers follow a change within a second."""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
import typer

from heliograph.base.db import Connection
from heliograph.base.errors import NotFound
from heliograph.base.settings import SettingsError
from heliograph.cli.console import DataDir, Json, as_plain, group, on_database, say, settings_of, show
from heliograph.sms import routing, suppliers
from heliograph.sms.routing import Supplier
from heliograph.suppliers.smpp.settings import SmppSettings, settings_from

app = group("Suppliers: add, list, pause, resume and remove the accounts that carry messages.")
add = group("Add a supplier, by its kind.")
app.add_typer(add, name="add")

COLUMNS = ("name", "state", "address", "system_id", "sessions", "leased", "bound", "priority", "weight", "prefixes")
Which = Annotated[str, typer.Argument(metavar="SUPPLIER", help="Name of the supplier, or its id.")]


@add.command("smpp")
def add_smpp(
    name: Annotated[str, typer.Argument(help="A name of yours for the account.")],
    host: Annotated[list[str], typer.Option(metavar="HOST", help="Host name or address; several are tried in turn.")],
    system_id: Annotated[str, typer.Option(help="Name of the account at the supplier.")],
    password: Annotated[
        str | None,
        typer.Option(
            metavar="SECRET",
            show_default=False,
            envvar="HELIOGRAPH_SUPPLIER_PASSWORD",
            help="The account's password. Left out, it is asked for, or read from stdin; others on this machine can"
            " read a command line.",
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="TCP port.")] = 2775,
    tls: Annotated[bool, typer.Option(help="Without TLS the password crosses the network in clear.")] = True,
    bind: Annotated[Literal["transceiver", "pair"], typer.Option(help="One bind a session, or two.")] = "transceiver",
    sessions: Annotated[int, typer.Option(min=1, max=1000, help="Sessions that the account may have in all.")] = 1,
    window: Annotated[int, typer.Option(min=1, help="Unanswered submits, per session.")] = 10,
    rate: Annotated[float, typer.Option(min=0, help="Segments a second, per session; 0: any number.")] = 0.0,
    prefix: Annotated[
        list[str] | None,
        typer.Option(metavar="DIGITS", help="Carry only numbers that begin so (258, no +); may be repeated."),
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=1000, help="The lowest number is asked first.")] = 10,
    weight: Annotated[int, typer.Option(min=1, max=1000, help="Share among suppliers of equal priority.")] = 1,
    parts: Annotated[
        Literal["all", "any", "first", "last"], typer.Option(help="Whose receipts decide a message of several parts.")
    ] = "all",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting; `heliograph supplier options` lists them."),
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Add an SMPP 3.4 account.

    \b
    Examples:
      heliograph supplier add smpp main --host smpp.example.net --port 3550 --system-id acme --sessions 2
      heliograph supplier add smpp local --host 127.0.0.1 --no-tls --system-id heliograph --password secret
      heliograph supplier add smpp mz --host 10.0.0.5 --no-tls --system-id a --prefix 258 --set dlr_id_base=hex
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
        key, value = _setting(pair)
        values[key] = value
    try:
        settings_from(values)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    settings = settings_of(data_dir, needs_key=True)

    secret = password or _password()

    async def work(conn: Connection) -> dict[str, Any]:
        id = await suppliers.add(
            conn,
            suppliers.seal_key(settings),
            name=name,
            kind="smpp",
            settings=values,
            secret=secret,
            prefixes=tuple(prefix or ()),
            priority=priority,
            weight=weight,
            sessions=sessions,
            parts=parts,
        )
        return await _find(conn, str(id))

    show(on_database(work, settings), json)


@app.command("options")
def options(json: Json = False) -> None:
    """List every setting of an SMPP account that `--set` takes, with its default and meaning.

    \b
    Example:
      heliograph supplier options
    """
    defaults = {
        field.name: None if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(SmppSettings)
    }
    rows = [
        {"setting": name, "default": _default(defaults[name]), "meaning": meaning}
        for name, (_, meaning) in _fields().items()
    ]
    show(rows, json, ("setting", "default", "meaning"))


@app.command("list")
def list_(json: Json = False, data_dir: DataDir = None) -> None:
    """List suppliers: their state, and the sessions that workers hold and have bound.

    \b
    Example:
      heliograph supplier list
    """
    rows = on_database(_all, settings_of(data_dir))
    show(rows, json, COLUMNS)
    if not json:
        for row in rows:
            if row["last_error"]:
                say(f"{row['name']}: {row['last_error']}")


@app.command("show")
def show_(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Show a supplier with all of its settings, but for its password.

    \b
    Example:
      heliograph supplier show main
    """

    async def work(conn: Connection) -> dict[str, Any]:
        return await _find(conn, which)

    show(on_database(work, settings_of(data_dir)), json)


@app.command("pause")
def pause(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Send nothing through a supplier, until it is resumed.

    \b
    Example:
      heliograph supplier pause main
    """
    _set_state(which, "paused", json, data_dir)


@app.command("resume")
def resume(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Send through a paused supplier again.

    \b
    Example:
      heliograph supplier resume main
    """
    _set_state(which, "active", json, data_dir)


@app.command("remove")
def remove(
    which: Which,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Remove a supplier for good, with its password. What it carried stays on record.

    \b
    Example:
      heliograph supplier remove main --yes
    """
    settings = settings_of(data_dir)
    if not yes:
        typer.confirm(f"Remove supplier {which}?", abort=True, err=True)

    async def work(conn: Connection) -> dict[str, Any]:
        before = await _find(conn, which)
        await suppliers.set_state(conn, supplier=which, state="removed")
        return before | {"state": "removed"}

    show(on_database(work, settings), json)


def _set_state(which: str, state: str, json: bool, data_dir: DataDir) -> None:
    async def work(conn: Connection) -> dict[str, Any]:
        return await _find(conn, str(await suppliers.set_state(conn, supplier=which, state=state)))

    show(on_database(work, settings_of(data_dir)), json)


async def _all(conn: Connection) -> list[dict[str, Any]]:
    held = await suppliers.sessions(conn)
    return [_shown(one, held) for one in await routing.load(conn)]


async def _find(conn: Connection, which: str) -> dict[str, Any]:
    for row in await _all(conn):
        if which in (row["name"], row["id"]):
            return row
    raise NotFound("There is no such supplier.", supplier=which)


def _shown(one: Supplier, held: dict[UUID, tuple[int, int, str]]) -> dict[str, Any]:
    """A supplier as operators see it: everything but its password."""
    leased, bound, error = held.get(one.id, (0, 0, ""))
    host = one.settings.get("host")
    row: dict[str, Any] = as_plain(one)
    del row["secret"]
    return row | {
        "address": f"{host if isinstance(host, str) else ','.join(host or ())}:{one.settings.get('port')}",
        "system_id": one.settings.get("system_id"),
        "leased": leased,
        "bound": bound,
        "last_error": error or None,
    }


def _fields() -> dict[str, tuple[Any, str]]:
    """Type and meaning of each setting of an SMPP account."""
    hints = get_type_hints(SmppSettings, include_extras=True)
    return {
        name: (get_args(hint)[0], get_args(hint)[1]) if get_origin(hint) is Annotated else (hint, "")
        for name, hint in hints.items()
        if name in SmppSettings.__struct_fields__
    }


def _password() -> str:
    """From the terminal without an echo, or the first line of stdin."""
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, err=True))
    secret = sys.stdin.readline().rstrip("\n")
    if not secret:
        raise typer.BadParameter("give --password, or HELIOGRAPH_SUPPLIER_PASSWORD, or a line on stdin")
    return secret


def _setting(pair: str) -> tuple[str, Any]:
    """`key=value` as the field's type wants it: as it is written, else as JSON, else as the items of a list."""
    key, separator, text = pair.partition("=")
    key = key.strip().replace("-", "_")
    if not separator:
        raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--set")
    fields = _fields()
    if key not in fields:
        raise typer.BadParameter(f"{key} is no setting; `heliograph supplier options` lists them", param_hint="--set")
    kind = fields[key][0]
    try:
        return key, msgspec.to_builtins(msgspec.convert(text, kind, strict=False))
    except msgspec.ValidationError as error:
        for written in (text, f"[{text}]"):
            try:
                return key, msgspec.to_builtins(msgspec.json.decode(written, type=kind))
            except msgspec.MsgspecError:
                continue
        raise typer.BadParameter(f"{key}: {error}", param_hint="--set") from None


def _default(value: Any) -> str:
    if value in (None, "", {}):
        return ""
    if isinstance(value, tuple):
        return ",".join(str(one) for one in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
