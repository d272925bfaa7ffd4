"""`heliograph rule`: what suppliers do with senders and numbers. Workers apply a change within a second."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from uuid import UUID

import typer

from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.cli.terminal.console import DataDir, in_capitals, on_database, settings_of, shell
from heliograph.cli.terminal.printing import Json, as_plain, group, show
from heliograph.senders import numbers, rules
from heliograph.senders.book import NumberRule, SenderRule
from heliograph.sms.dispatch import routing, suppliers

app = group("Set, list and remove suppliers' rules for senders and numbers.")

COLUMNS = ("id", "supplier", "for", "rule", "note")
Which = Annotated[str, typer.Argument(metavar="SUPPLIER", help="Supplier, by name or id.")]
Note = Annotated[str, typer.Option(help="A note for operators.")]
_is_numbering = re.compile(r"([0-9]{1,3})/([0-9]{1,3})").fullmatch


@app.command("sender")
def sender(
    supplier: Which,
    action: Annotated[
        Literal["allow", "replace", "refuse", "register"],
        typer.Argument(
            metavar="ACTION",
            help="allow: as it is; replace; refuse; register: as it is once it is registered, see `sender register`.",
        ),
    ],
    country: Annotated[
        str | None, typer.Option(metavar="ISO", callback=in_capitals, help="Only numbers of this country, such as MZ.")
    ] = None,
    sender_name: Annotated[str | None, typer.Option("--sender", metavar="NAME", help="Only this sender.")] = None,
    kind: Annotated[
        Literal["alphanumeric", "numeric"] | None, typer.Option(help="Only names, or only numbers and short codes.")
    ] = None,
    replacement: Annotated[
        str | None,
        typer.Option("--by", metavar="NAME", help="Sent instead; for register, while it is not registered."),
    ] = None,
    note: Note = "",
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Set what a supplier does with senders, replacing an earlier rule for the same ones.

    Among several rules the most specific applies: by country first, then by sender, then by kind. A message whose
    sender no supplier would carry is refused before it costs anything.

    \b
    Examples:
      heliograph rule sender main refuse --kind alphanumeric --country BR
      heliograph rule sender main replace --country AR --by 90210
      heliograph rule sender main register --country MZ --note "Vodacom blocks the others"
    """

    async def work(conn: Connection) -> dict[str, Any]:
        rule = SenderRule(
            id=uuid7(),
            supplier_id=await suppliers.id_of(conn, supplier),
            country=country,
            sender=sender_name,
            kind=kind,
            action=action,
            replacement=replacement,
            note=note,
        )
        return await _find(conn, await rules.put(conn, rule, by=shell()))

    show(on_database(work, settings_of(data_dir)), json)


@app.command("number")
def number(
    supplier: Which,
    prefix: Annotated[str, typer.Option(metavar="DIGITS", help="Only numbers with this prefix (549, no +).")] = "",
    strip: Annotated[str, typer.Option(metavar="DIGITS", help="Removed from the front.")] = "",
    prepend: Annotated[str, typer.Option(metavar="DIGITS", help="Put in front instead.")] = "",
    numbering: Annotated[
        str | None, typer.Option(metavar="TON/NPI", help="SMPP: type of number and numbering plan, such as 2/1.")
    ] = None,
    sender_numbering: Annotated[
        str | None, typer.Option(metavar="TON/NPI", help="SMPP: the same of the sender, such as 5/0.")
    ] = None,
    note: Note = "",
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Set the format in which a supplier expects recipients' numbers, replacing an earlier rule for the same prefix.

    Among several rules the one with the longest prefix applies. Numbers that do not begin with the digits to strip are
    unchanged. Only what is sent to the supplier changes.

    \b
    Examples:
      heliograph rule number main --prefix 549 --strip 549 --prepend 54
      heliograph rule number main --prefix 258 --strip 258 --numbering 2/1
      heliograph rule number main --prepend 00
    """

    async def work(conn: Connection) -> dict[str, Any]:
        rule = NumberRule(
            id=uuid7(),
            supplier_id=await suppliers.id_of(conn, supplier),
            prefix=prefix,
            strip=strip,
            prepend=prepend,
            numbering=_pair(numbering, "--numbering"),
            sender_numbering=_pair(sender_numbering, "--sender-numbering"),
            note=note,
        )
        return await _find(conn, await numbers.put(conn, rule, by=shell()))

    show(on_database(work, settings_of(data_dir)), json)


@app.command("list")
def list_(
    supplier: Annotated[str | None, typer.Option(metavar="SUPPLIER", help="Only the rules of this supplier.")] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List the rules for senders and numbers, by supplier.

    \b
    Examples:
      heliograph rule list
      heliograph rule list --supplier main --json
    """

    async def work(conn: Connection) -> list[dict[str, Any]]:
        wanted = None if supplier is None else str(await suppliers.id_of(conn, supplier))
        return [one for one in await _all(conn) if wanted in (None, one["supplier_id"])]

    show(on_database(work, settings_of(data_dir)), json, COLUMNS)


@app.command("remove")
def remove(
    id: Annotated[UUID, typer.Argument(metavar="RULE_ID", help="Id of the rule, as listed.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Remove a rule.

    \b
    Example:
      heliograph rule remove 0199c0de-0000-7000-8000-000000000000
    """

    async def work(conn: Connection) -> dict[str, Any]:
        found = await _find(conn, id)
        if found["kind"] == "number":
            await numbers.remove(conn, id, by=shell())
        else:
            await rules.remove(conn, id, by=shell())
        return found

    show(on_database(work, settings_of(data_dir)), json)


def _pair(text: str | None, option: str) -> tuple[int, int] | None:
    if text is None:
        return None
    found = _is_numbering(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not TON/NPI, such as 1/1", param_hint=option)
    return int(found[1]), int(found[2])


async def _all(conn: Connection) -> list[dict[str, Any]]:
    names = {one.id: one.name for one in await routing.load(conn)}
    listed = [_sender(one) for one in await rules.load(conn)] + [_number(one) for one in await numbers.load(conn)]
    shown = [as_plain(one | {"supplier": names[one["supplier_id"]]}) for one in listed if one["supplier_id"] in names]
    return sorted(shown, key=lambda one: (one["supplier"], one["kind"], one["for"]))


async def _find(conn: Connection, id: UUID) -> dict[str, Any]:
    for one in await _all(conn):
        if one["id"] == str(id):
            return one
    raise NotFound("There is no such rule.", resource="rule", id=str(id))


def _sender(one: SenderRule) -> dict[str, Any]:
    of = one.sender or {"alphanumeric": "names", "numeric": "numbers", None: "all senders"}[one.kind]
    by = f" by {one.replacement}" if one.action == "replace" else f" or {one.replacement}" if one.replacement else ""
    return {
        "id": one.id,
        "kind": "sender",
        "supplier_id": one.supplier_id,
        "for": f"{of} to {one.country or 'anywhere'}",
        "rule": one.action + by,
        "country": one.country,
        "sender": one.sender,
        "sender_kind": one.kind,
        "action": one.action,
        "replacement": one.replacement,
        "note": one.note,
    }


def _number(one: NumberRule) -> dict[str, Any]:
    said = (
        ("strip", one.strip),
        ("prepend", one.prepend),
        ("TON/NPI", one.numbering and "{}/{}".format(*one.numbering)),
        ("sender's", one.sender_numbering and "{}/{}".format(*one.sender_numbering)),
    )
    return {
        "id": one.id,
        "kind": "number",
        "supplier_id": one.supplier_id,
        "for": f"numbers {one.prefix}…" if one.prefix else "all numbers",
        "rule": ", ".join(f"{name} {value}" for name, value in said if value),
        "prefix": one.prefix,
        "strip": one.strip,
        "prepend": one.prepend,
        "numbering": one.numbering,
        "sender_numbering": one.sender_numbering,
        "note": one.note,
    }
