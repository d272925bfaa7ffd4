"""`heliograph route`: which messages go to which suppliers. Workers apply a change within a second.

It has over 400 lines because each command contains its options and examples.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import typer

from heliograph.accounts import organizations
from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.base.money import decimal
from heliograph.base.sentences import with_noun
from heliograph.cli.terminal.asking import confirm
from heliograph.cli.terminal.console import DataDir, Org, in_capitals, on_database, only, settings_of
from heliograph.cli.terminal.console import shell as who
from heliograph.cli.terminal.printing import Json, as_plain, form, group, say, show
from heliograph.cli.traffic import route_history
from heliograph.networks.plan import no_network, unlisted
from heliograph.routes import rules
from heliograph.routes.lookup import Choice, Route
from heliograph.routes.rules import StoredRoute
from heliograph.sms.dispatch import explaining, routing, suppliers
from heliograph.sms.management import current_shares, rerouting
from heliograph.sms.management.shifts import LookedUp

app = group("Add, list, change, pause, remove and restore routes, which choose suppliers, and explain their choice.")

COLUMNS = ("name", "state", "destination", "organization", "sender", "class", "priority", "suppliers", "note")
Which = Annotated[str, typer.Argument(metavar="ROUTE", help="Route, by name or id.")]
Class = Literal["otp", "transactional", "marketing"]

Prefix = Annotated[
    str | None, typer.Option(metavar="DIGITS", help="Numbers with this prefix (25884, no +). The longest one wins.")
]
Country = Annotated[
    str | None, typer.Option(metavar="ISO", callback=in_capitals, help="Numbers of this country, such as MZ.")
]
Network = Annotated[str | None, typer.Option(metavar="MCC-MNC", help="Numbers of this network, such as 643-04.")]
Sender = Annotated[str | None, typer.Option(metavar="NAME", help="Only messages from this sender.")]
TrafficClass = Annotated[Class | None, typer.Option("--class", help="Only messages of this class.")]
Note = Annotated[str | None, typer.Option(help="A note for operators.")]
Suppliers = Annotated[
    list[str] | None,
    typer.Option(
        "--supplier",
        metavar="NAME[:PRIORITY[:WEIGHT]]",
        help=(
            "A supplier of the route. Repeatable: they are tried in this order, unless priorities are given; those of "
            "equal priority share by weight."
        ),
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing: say how much of yesterday's traffic it would move.")
]
#: For `set`: the value that removes a condition.
ANY = "any"
SKIPPED = (
    "the route decides nothing: none of its suppliers carries to its destination, so workers skip it, and the next "
    "matching route or the suppliers' own prefixes decide"
)


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Your name for the route.")],
    supplier: Suppliers = None,
    prefix: Prefix = None,
    country: Country = None,
    network: Network = None,
    sender: Sender = None,
    traffic_class: TrafficClass = None,
    priority: Annotated[
        int, typer.Option(min=0, max=1000, help="Among routes of one destination, the lowest number wins.")
    ] = 10,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="Let measured quality and prices reorder its suppliers.")
    ] = False,
    rated: Annotated[
        bool, typer.Option("--rated", help="Use only suppliers whose rate card has a price for the number.")
    ] = False,
    note: Note = None,
    org: Annotated[
        str | None, typer.Option(metavar="ORG", help="Only messages of this organization, by name or id.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Add a route. Without a destination it applies to every number.

    \b
    Examples:
      heliograph route add mozambique --prefix 258 --supplier main --supplier backup
      heliograph route add codes --country MZ --class otp --supplier main --supplier backup:20
      heliograph route add shared --supplier main:10:3 --supplier backup:10:1 --org Acme --dry-run
    """

    async def work(conn: Connection) -> dict[str, Any]:
        wanted = Route(
            id=uuid7(),
            name=name,
            prefix=prefix,
            country=country,
            network=network,
            organization_id=await only(conn, org),
            sender=sender,
            traffic_class=traffic_class,
            priority=priority,
            adaptive=adaptive,
            rated=rated,
            choices=await _choices(conn, supplier or []),
        )
        made = await rules.add(conn, wanted, note=note or "", by=who())
        return await _find(conn, made.id)

    _warn_of(network)
    _change(work, dry_run, json, data_dir)


@app.command("list")
def list_(json: Json = False, data_dir: DataDir = None) -> None:
    """List routes, most specific destinations first.

    \b
    Example:
      heliograph route list
    """
    show(on_database(_all, settings_of(data_dir)), json, COLUMNS)


@app.command("show")
def show_(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Show a route, and why an adaptive one gives each supplier its points, by network where they differ.

    \b
    Example:
      heliograph route show codes
    """

    async def work(conn: Connection) -> dict[str, Any]:
        names = await _names(conn)
        one = await rules.find(conn, route=which)
        shares = sorted(one.shares.values(), key=lambda share: -share.points)
        return _shown(one, names) | {
            "shares": [
                {
                    "supplier": names.get(two.supplier_id, "(removed)"),
                    "network": network,
                    "points": there.points,
                    "reason": there.reason,
                }
                for two in shares
                for network, there in ((None, two), *sorted(two.networks.items()))
            ]
        }

    found = on_database(work, settings_of(data_dir))
    if json:
        show(found, json)
        return
    shares = found.pop("shares")
    show(found, json)
    if shares:
        if form(json) != "tsv":
            print()
        show(shares, json, ("supplier", "network", "points", "reason"))


@app.command("set")
def set_(
    which: Which,
    supplier: Suppliers = None,
    name: Annotated[str | None, typer.Option(help="New name.")] = None,
    prefix: Prefix = None,
    country: Country = None,
    network: Network = None,
    sender: Sender = None,
    traffic_class: Annotated[
        Literal["otp", "transactional", "marketing", "any"] | None,
        typer.Option("--class", help="Only messages of this class; any: of all classes."),
    ] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=1000, help="New priority.")] = None,
    adaptive: Annotated[
        bool | None, typer.Option("--adaptive/--fixed", help="Whether measured quality and prices reorder it.")
    ] = None,
    rated: Annotated[
        bool | None, typer.Option("--rated/--unrated", help="Whether only suppliers with a price are used.")
    ] = None,
    note: Note = None,
    org: Annotated[
        str | None, typer.Option(metavar="ORG", help="Only messages of this organization; any: of all of them.")
    ] = None,
    dry_run: DryRun = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Change a route. A destination replaces the previous one; `any` removes a condition; the given suppliers replace
    all previous ones.

    \b
    Examples:
      heliograph route set mozambique --supplier backup --supplier main
      heliograph route set codes --network 643-04 --class any
    """

    async def work(conn: Connection) -> dict[str, Any]:
        before = await rules.lock(conn, route=which)
        wanted: dict[str, Any] = {}
        if prefix is not None or country is not None or network is not None:
            wanted |= {"prefix": _given(prefix), "country": _given(country), "network": _given(network)}
        if org is not None:
            wanted["organization_id"] = None if org == ANY else await only(conn, org)
        if sender is not None:
            wanted["sender"] = _given(sender)
        if traffic_class is not None:
            wanted["traffic_class"] = _given(traffic_class)
        if supplier:
            wanted["choices"] = await _choices(conn, supplier)
        plain = {"name": name, "priority": priority, "adaptive": adaptive, "rated": rated}
        wanted |= {field: value for field, value in plain.items() if value is not None}
        after = msgspec.structs.replace(before.route, **wanted)
        await rules.change(conn, before, after, note=note, by=who())
        return await _find(conn, after.id)

    _warn_of(_given(network))
    _change(work, dry_run, json, data_dir)


@app.command("pause")
def pause(which: Which, dry_run: DryRun = False, json: Json = False, data_dir: DataDir = None) -> None:
    """Pause a route: the next one that matches applies.

    \b
    Example:
      heliograph route pause mozambique
    """
    _set_state(which, "paused", dry_run, json, data_dir)


@app.command("resume")
def resume(which: Which, dry_run: DryRun = False, json: Json = False, data_dir: DataDir = None) -> None:
    """Resume a paused route.

    \b
    Example:
      heliograph route resume mozambique
    """
    _set_state(which, "active", dry_run, json, data_dir)


@app.command("remove")
def remove(
    which: Which,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Remove a route. Waiting messages are routed by the remaining ones.

    \b
    Example:
      heliograph route remove mozambique --yes
    """
    if not yes and not dry_run:
        on_database(lambda conn: rules.find(conn, route=which), settings_of(data_dir))
        confirm(f"Remove route {which}?")

    async def work(conn: Connection) -> dict[str, Any]:
        before = await rules.lock(conn, route=which)
        shown = await _find(conn, before.route.id)
        await rules.remove(conn, before, by=who())
        return shown | {"state": "removed"}

    _change(work, dry_run, json, data_dir)


@app.command("history")
def history(
    which: Annotated[
        str | None, typer.Argument(metavar="ROUTE", help="Route, by name or id.", show_default="all of them")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number to show.")] = 50,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List the changes to a route, or to all of them including removed ones, newest first.

    \b
    Examples:
      heliograph route history mozambique
      heliograph route history --limit 10
    """

    async def work(conn: Connection) -> list[dict[str, Any]]:
        return await route_history.listed(conn, which, limit)

    show(on_database(work, settings_of(data_dir)), json, route_history.COLUMNS, limit=limit)


@app.command("undo")
def undo(
    id: Annotated[UUID, typer.Argument(metavar="CHANGE_ID", help="Id of the change, as `route history` shows it.")],
    dry_run: DryRun = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Undo a change of a route; a removed one is added again.

    \b
    Examples:
      heliograph route undo 0199c0de-0000-7000-8000-000000000000 --dry-run
      heliograph route undo 0199c0de-0000-7000-8000-000000000000
    """

    async def work(conn: Connection) -> dict[str, Any]:
        return await _find(conn, UUID(await route_history.undone(conn, id)))

    _change(work, dry_run, json, data_dir)


@app.command("explain")
def explain(
    to: Annotated[str, typer.Argument(metavar="NUMBER", help="Recipient, with country code: +258841234567.")],
    sender: Annotated[str, typer.Option(metavar="NAME", help="The sender.")] = "",
    traffic_class: Annotated[Class, typer.Option("--class", help="Class of the message.")] = "transactional",
    network: Network = None,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show which supplier a message would go to now, and why.

    \b
    Example:
      heliograph route explain +258841234567 --org Acme --sender BAKERY --class otp
    """
    number = phones.international(to)
    if number is None:
        raise typer.BadParameter("must be a phone number with + and country code", param_hint="NUMBER")
    if network is not None and (said := no_network(network)):
        raise typer.BadParameter(said, param_hint="--network")

    async def work(conn: Connection) -> explaining.Explanation:
        found = await organizations.find(conn, reference=org)
        return await explaining.explain(
            conn,
            number,
            organization_id=found.id,
            organization=found.name,
            sender=sender,
            traffic_class=traffic_class,
            network=network,
        )

    show(on_database(work, settings_of(data_dir)), json)


def _warn_of(network: str | None) -> None:
    """Say that a network's zeros cannot be checked, if that is so."""
    if network is not None and not no_network(network) and (warning := unlisted([network])):
        say(warning)


def _given(value: str | None) -> str | None:
    return None if value == ANY else value


def _set_state(which: str, state: str, dry_run: bool, json: bool, data_dir: Path | None) -> None:
    async def work(conn: Connection) -> dict[str, Any]:
        before = await rules.lock(conn, route=which)
        await rules.set_state(conn, before, state, by=who())
        return await _find(conn, before.route.id)

    _change(work, dry_run, json, data_dir)


def _change(
    work: Callable[[Connection], Awaitable[dict[str, Any]]], dry_run: bool, json: bool, data_dir: Path | None
) -> None:
    """Make a change in one transaction and show the route; or, on a dry run, show its effect."""

    async def judged(conn: Connection) -> dict[str, Any]:
        shown = await work(conn)
        if shown["state"] == "active":
            route = (await rules.find(conn, route=shown["id"])).route
            if current_shares.is_skipped(route, await routing.load(conn)):
                say(SKIPPED)
        return shown

    async def done(conn: Connection) -> dict[str, Any]:
        if not dry_run:
            async with conn.transaction():
                return await judged(conn)
        _, found = await rerouting.tried(conn, judged)
        return {
            "dry_run": found.said,
            "messages": found.messages,
            "least": round(found.least, 4),
            "most": round(found.most, 4),
            "refused": [f"{one.messages:,} from {one.sender} to {one.country}" for one in found.refused],
            "lookups": [_asked(one) for one in found.lookups],
        }

    show(on_database(done, settings_of(data_dir)), json)


def _asked(one: LookedUp) -> str:
    cost = f"{with_noun(one.numbers, 'number')} a day, {decimal(one.cost)} {one.currency}"
    return f"{one.country} by {one.by}: up to {cost}" if one.begins else f"{one.country} no longer by {one.by}"


async def _names(conn: Connection) -> dict[UUID, str]:
    return {one.id: one.name for one in await routing.load(conn)}


async def _choices(conn: Connection, given: list[str]) -> tuple[Choice, ...]:
    """Suppliers given with `--supplier`. Raises typer.BadParameter."""
    chosen = []
    for place, one in enumerate(given, 1):
        name, *numbers = one.split(":")
        try:
            id = await suppliers.id_of(conn, name)
        except NotFound:
            raise typer.BadParameter(f"there is no supplier {name!r}", param_hint="--supplier") from None
        # Python reads no number of more than 4,300 digits.
        if len(numbers) > 2 or not all(re.fullmatch("[0-9]{1,100}", number) for number in numbers):
            raise typer.BadParameter(f"{one!r} is not NAME[:PRIORITY[:WEIGHT]]", param_hint="--supplier")
        chosen.append(Choice(id, *map(int, numbers)) if numbers else Choice(id, place * 10))
    return tuple(chosen)


async def _all(conn: Connection) -> list[dict[str, Any]]:
    names = await _names(conn)
    found = sorted(await rules.load(conn), key=lambda one: explaining.place(one.route))
    return [_shown(one, names) for one in found]


async def _find(conn: Connection, id: UUID) -> dict[str, Any]:
    return next(one for one in await _all(conn) if one["id"] == str(id))


def _shown(one: StoredRoute, names: dict[UUID, str]) -> dict[str, Any]:
    route = one.route
    where = next((value for value in (route.network, route.prefix, route.country) if value is not None), ANY)
    chosen = sorted(route.choices, key=lambda choice: (choice.priority, -choice.weight))
    return {
        "id": str(route.id),
        "name": route.name,
        "state": one.state,
        "destination": where,
        "prefix": route.prefix,
        "country": route.country,
        "network": route.network,
        "organization": one.organization,
        "sender": route.sender,
        "class": route.traffic_class,
        "priority": route.priority,
        "adaptive": route.adaptive,
        "rated": route.rated,
        "suppliers": [f"{names.get(two.supplier_id, '(removed)')}:{two.priority}:{two.weight}" for two in chosen],
        "note": one.note,
        "changed_at": as_plain(one.changed_at),
    }
