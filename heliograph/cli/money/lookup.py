"""`heliograph lookup`: suppliers that report the network of a number. Workers apply a change within seconds."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

import msgspec
import typer

from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.base.money import decimal
from heliograph.cli.terminal.asking import confirm, typed_secret
from heliograph.cli.terminal.console import DataDir, Problem, on_database, settings_of, shell
from heliograph.cli.terminal.printing import Json, group, show
from heliograph.networks import asked
from heliograph.sms.dispatch import suppliers
from heliograph.sms.lookups import accounts, asking, forms
from heliograph.sms.lookups.accounts import Account
from heliograph.suppliers.http.kind import SECRET
from heliograph.suppliers.lookups import kinds

app = group("Add, list, try, change, pause, resume and remove suppliers of number look-ups, and show what they cost.")

COLUMNS = ("name", "state", "kind", "countries", "price", "currency", "worth_it", "this_month", "cost_this_month")
Which = Annotated[str, typer.Argument(metavar="LOOKUP", help="Look-up supplier, by name or id.")]
Pairs = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings, from `heliograph lookup options`. Empty: the default."),
]
Kind = Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(kinds.KINDS)}.")]
Password = Annotated[
    str | None,
    typer.Option(
        metavar="SECRET",
        show_default=False,
        envvar="HELIOGRAPH_SUPPLIER_PASSWORD",
        help=(
            "API key of the account. If omitted, it is prompted for or read from stdin; command lines are visible to "
            "other users of this machine."
        ),
    ),
]


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Your name for it.")],
    kind: Kind,
    pairs: Pairs = None,
    password: Password = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Add a look-up supplier. It is used only for numbers of countries where a route names a network, and only while
    that is worth its price: ported * loss > price / reuses.

    \b
    Example:
      heliograph lookup add mnp infobip base_url=https://x1y2z3.api.infobip.com price=0.003 currency=EUR countries=MZ
    """
    _demand(kind)
    settings = settings_of(data_dir, needs_key=True)
    values = {key: value for key, value in _parsed(kind, pairs).items() if value is not None}
    secret = password or typed_secret(kinds.KINDS[kind].secrets[SECRET])

    async def work(conn: Connection) -> dict[str, Any]:
        key = suppliers.seal_key(settings)
        await accounts.add(conn, key, name=name, kind=kind, values=values, secrets={SECRET: secret}, by=shell())
        return await _find(conn, name)

    show(on_database(work, settings), json)


@app.command("list")
def list_(json: Json = False, data_dir: DataDir = None) -> None:
    """List look-up suppliers, how many numbers each was asked for this month, and what that cost.

    \b
    Example:
      heliograph lookup list
    """
    show(on_database(_all, settings_of(data_dir)), json, COLUMNS)


@app.command("options")
def options(kind: Kind, json: Json = False) -> None:
    """List every setting of a kind of look-up supplier, with its default and meaning.

    \b
    Example:
      heliograph lookup options infobip
    """
    _demand(kind)
    rows = [{"setting": one.name, "default": one.default, "meaning": one.meaning} for one in forms.fields(kind)]
    show(rows, json, ("setting", "default", "meaning"))


@app.command("set")
def set_(
    which: Which,
    pairs: Pairs = None,
    ask_password: Annotated[
        bool, typer.Option("--ask-password", help="Prompt for a new API key, or read it from stdin.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Change a look-up supplier.

    \b
    Example:
      heliograph lookup set mnp price=0.002 countries=MZ,ZA
    """
    settings = settings_of(data_dir, needs_key=True)

    async def work(conn: Connection) -> dict[str, Any]:
        before = await accounts.find(conn, which)
        secret = {SECRET: typed_secret(kinds.KINDS[before.kind].secrets[SECRET])} if ask_password else None
        values = _parsed(before.kind, pairs)
        key = suppliers.seal_key(settings)
        await accounts.change(conn, key, account=which, values=values, secrets=secret, by=shell())
        return await _find(conn, str(before.id))

    show(on_database(work, settings), json)


@app.command("try")
def try_(
    which: Which,
    to: Annotated[str, typer.Argument(metavar="NUMBER", help="Number, with country code: +258841234567.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Look up a number now, and show the answer. Nothing is stored; the supplier charges for it.

    \b
    Example:
      heliograph lookup try mnp +258841234567
    """
    number = phones.international(to)
    if number is None:
        raise typer.BadParameter("must be a phone number with + and country code", param_hint="NUMBER")
    settings = settings_of(data_dir, needs_key=True)

    async def work(conn: Connection) -> dict[str, Any]:
        one = await accounts.find(conn, which)
        try:
            network = await asking.try_once(suppliers.seal_key(settings), one, number)
        except Invalid as refusal:
            raise Problem(refusal.message) from None
        return {"number": number, "network": network or None, "lookup": one.name}

    show(on_database(work, settings), json)


@app.command("pause")
def pause(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Pause a look-up supplier: numbers are routed by what is already known about them.

    \b
    Example:
      heliograph lookup pause mnp
    """
    _set_state(which, "paused", json, data_dir)


@app.command("resume")
def resume(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Resume a paused look-up supplier.

    \b
    Example:
      heliograph lookup resume mnp
    """
    _set_state(which, "active", json, data_dir)


@app.command("remove")
def remove(
    which: Which,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Remove a look-up supplier and its API key permanently. Its answers are kept for 90 days.

    \b
    Example:
      heliograph lookup remove mnp --yes
    """
    if not yes:
        on_database(lambda conn: accounts.find(conn, which), settings_of(data_dir))
        confirm(f"Remove look-up supplier {which}?")
    _set_state(which, "removed", json, data_dir)


def _set_state(which: str, state: Literal["active", "paused", "removed"], json: bool, data_dir: DataDir) -> None:
    async def work(conn: Connection) -> dict[str, Any]:
        before = await _find(conn, which)
        await accounts.set_state(conn, account=which, state=state, by=shell())
        return before | {"state": state}

    show(on_database(work, settings_of(data_dir)), json)


def _demand(kind: str) -> None:
    if kind not in kinds.KINDS:
        raise typer.BadParameter(f"must be one of {', '.join(kinds.KINDS)}", param_hint="KIND")


def _parsed(kind: str, pairs: list[str] | None) -> dict[str, Any]:
    try:
        return accounts.parsed(kind, pairs or [])
    except Invalid as refusal:
        raise typer.BadParameter(refusal.message) from None


async def _all(conn: Connection) -> list[dict[str, Any]]:
    spent = await asked.spent(conn)
    now: date = await conn.fetchval("SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date")
    month = [one for one in spent if one.month == now]
    return [_shown(one, month) for one in await accounts.load(conn)]


async def _find(conn: Connection, which: str) -> dict[str, Any]:
    one = await accounts.find(conn, which)
    return next(row for row in await _all(conn) if row["id"] == str(one.id))


def _shown(one: Account, month: list[asked.MonthlyLookups]) -> dict[str, Any]:
    own = [line for line in month if line.supplier_id == one.id]
    paid = [f"{decimal(line.price)} {line.currency}" for line in own if line.price]
    return {
        "id": str(one.id),
        "name": one.name,
        "state": one.state,
        "kind": one.kind,
        **{name: _written(value) for name, value in msgspec.structs.asdict(one.settings).items()},
        "worth_it": one.settings.is_worth_it,
        "this_month": sum(line.numbers for line in own),
        "found_this_month": sum(line.found for line in own),
        "failed_this_month": sum(line.failed for line in own),
        "cost_this_month": ", ".join(paid) or None,
    }


def _written(value: Any) -> Any:
    return ",".join(value) if isinstance(value, tuple) else value
