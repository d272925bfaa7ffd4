"""`heliograph guard`: suspicious ranges of numbers, messages held because of them, and each organization's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

import msgspec
import typer

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.classes import kinds
from heliograph.cli.terminal.console import (
    DataDir,
    Org,
    OrgOrAll,
    moment,
    on_database,
    organization,
    settings_of,
    shell,
)
from heliograph.cli.terminal.printing import Json, as_plain, group, show
from heliograph.guard import holds, rules
from heliograph.guard.holds import Hold
from heliograph.guard.rules import Rules
from heliograph.guard.windows import RULES
from heliograph.sms.dispatch import held

app = group("List, release and withdraw messages held as suspicious, and set an organization's rules.")

COLUMNS = ("id", "organization", "range", "waiting", "met", "policy", "because", "begun_at", "until")
HoldId = Annotated[UUID, typer.Argument(metavar="HOLD_ID", help="Id of a hold, from `guard list`.")]


@app.command("list")
def list_(
    org: OrgOrAll = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of holds.")] = 100,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List suspicious ranges of the last month, newest first, with the messages held and the rules that matched.

    \b
    Examples:
      heliograph guard list
      heliograph guard list --org "Acme Lda" --json
    """

    async def work(conn: Connection) -> list[Hold]:
        found = None if org is None else (await organization(conn, org)).id
        return await holds.list_all(conn, organization_id=found, limit=limit)

    show([_display(one) for one in on_database(work, settings_of(data_dir))], json, COLUMNS, limit=limit)


@app.command("release")
def release(hold_id: HoldId, json: Json = False, data_dir: DataDir = None) -> None:
    """Release a range: send its held messages, and leave it alone for a day.

    \b
    Example:
      heliograph guard release 0199c0de-0000-7000-8000-000000000000
    """

    async def work(conn: Connection) -> dict[str, Any]:
        one, queued = await holds.release(conn, hold_id, by=shell())
        return _display(one) | {"released": queued}

    show(on_database(work, settings_of(data_dir)), json)


@app.command("withdraw")
def withdraw(hold_id: HoldId, json: Json = False, data_dir: DataDir = None) -> None:
    """Cancel a range's held messages and refund their quota. The range stays held until its time is over.

    \b
    Example:
      heliograph guard withdraw 0199c0de-0000-7000-8000-000000000000
    """

    async def work(conn: Connection) -> dict[str, Any]:
        canceled = await held.withdraw(conn, hold_id, at=clock.now(), by=shell())
        return _display(await holds.get(conn, hold_id)) | {"canceled": canceled}

    show(on_database(work, settings_of(data_dir)), json)


@app.command("rules")
def rules_(
    org: Org = None,
    policy: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help=(
                "What to do with messages to a suspicious range: monitor (only note them), hold, refuse, ask "
                "(refuse until the person was challenged), or default: monitor for two weeks, then hold."
            ),
        ),
    ] = None,
    safe: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIGITS",
            show_default=False,
            help=(
                "Beginning of numbers, or a whole number, that is never held; repeatable; replaces the previous "
                "ones; `none` removes them."
            ),
        ),
    ] = None,
    event_until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            show_default=False,
            help=(
                "Announce an event: until this time (ISO 8601, at most 14 days ahead) ten times the usual number of "
                "messages is usual; `none` ends it."
            ),
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS=MESSAGES",
            show_default=False,
            help=(
                f"Messages of a class ({', '.join(kinds.NAMES)}) that may be sent in ten minutes; the rest is "
                "suspicious. Repeatable; `otp=none` removes a limit."
            ),
        ),
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show an organization's rules, or change them.

    \b
    Examples:
      heliograph guard rules --org "Acme Lda"
      heliograph guard rules --org "Acme Lda" --policy hold --safe 25884123 --safe 25885000
      heliograph guard rules --org "Acme Lda" --limit otp=500
    """

    async def work(conn: Connection) -> Rules:
        found = await organization(conn, org)
        if policy is None and not safe and event_until is None and not limit:
            return await rules.rules_of(conn, found.id)
        return await rules.configure(
            conn,
            found.id,
            policy=msgspec.UNSET if policy is None else None if policy == "default" else policy,
            safe=msgspec.UNSET if not safe else [] if safe == ["none"] else safe,
            event_until=msgspec.UNSET if event_until is None else until,
            limits=_limits(limit or ()),
            by=shell(),
        )

    until = None if event_until in (None, "none") else moment(event_until, "--event-until")
    show(on_database(work, settings_of(data_dir)), json)


def _limits(given: Sequence[str]) -> dict[str, int | None]:
    """Limits by class, from texts such as `otp=500` or `otp=none`. Raises typer.BadParameter."""
    limits: dict[str, int | None] = {}
    for one in given:
        name, _, value = one.partition("=")
        if not (value == "none" or (value.isascii() and value.isdigit() and len(value) <= 9)):
            raise typer.BadParameter("a limit is CLASS=MESSAGES, such as otp=500, or otp=none", param_hint="--limit")
        limits[name] = None if value == "none" else int(value)
    return limits


def _display(one: Hold) -> dict[str, Any]:
    """A hold for display: rules in words, and only the end of a whole number."""
    because = "; ".join(RULES[rule] for rule in one.rules)
    return as_plain(one) | {"because": because} | ({"range": f"…{one.range[-4:]}"} if one.kind == "number" else {})
