"""`heliograph whatsapp inbound`: simulate callbacks from Meta, and inspect those that could not be applied."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Annotated
from uuid import UUID

import msgspec
import typer

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, open_pool
from heliograph.base.errors import NotFound
from heliograph.cli.terminal.asking import confirm
from heliograph.cli.terminal.console import DataDir, Org, Problem, on_database, operator, settings_of, shell
from heliograph.cli.terminal.http import address, exchange
from heliograph.cli.terminal.printing import Json, group, is_for_programs, say, show
from heliograph.whatsapp.callbacks import dead_letters, simulated
from heliograph.whatsapp.callbacks.processing import retries
from heliograph.whatsapp.callbacks.simulated import Callback, Number
from heliograph.whatsapp.mirror import apps

app = group("Simulate callbacks from Meta, and list, retry or drop items that could not be applied.")

#: Length of the service window opened by a user's message, in seconds.
WINDOW = 86_400.0
#: How long ago a callback can have happened, in seconds.
FARTHEST = 365 * 86_400.0
COLUMNS = ("received_at", "reason", "id")


@app.command("simulate")
def simulate(
    from_: Annotated[
        str | None, typer.Option("--from", metavar="NUMBER", help="Sender of the message: +212600000017.")
    ] = None,
    text: Annotated[str, typer.Option(metavar="TEXT", help="Text of the message.")] = "Hello",
    type: Annotated[str, typer.Option(metavar="TYPE", help="Message type, as named by Meta.")] = "text",
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Simulate a status instead: sent, delivered, read or failed.")
    ] = None,
    message: Annotated[
        str | None, typer.Option(metavar="ID", help="Id of the message that the status is about.")
    ] = None,
    error: Annotated[int, typer.Option(metavar="CODE", help="Meta's error code, for a failure.")] = 131026,
    ago: Annotated[float, typer.Option(min=0, help="How long ago it happened, in seconds.")] = 0.0,
    number: Annotated[
        str | None,
        typer.Option(help="Your number that received it, by id or digits. Optional if there is only one."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="URL of the API. Defaults to that of `heliograph up`, or else http://127.0.0.1:8080."),
    ] = None,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Post an inbound message, or a status of an outbound message, to the callback address as Meta would.

    It is stored, processed and delivered to webhook endpoints like any other. Meta does not know about it, so a text
    reply to a made-up user fails there. The simulated Graph API (that of `heliograph up`, or `simulate graph`) is
    notified and accepts replies to the user.

    \b
    Examples:
      heliograph whatsapp inbound simulate --from +212600000017 --text "Where is my order?"
      heliograph whatsapp inbound simulate --status read --message 0190a1b2-...
    """
    if (status is None) == (from_ is None) or (status is None) != (message is None):
        raise typer.BadParameter("give either --from, for a message, or --status with --message")
    if not ago <= FARTHEST:  # nor is it not a number
        raise typer.BadParameter("must be at most a year", param_hint="--ago")
    at = clock.now() - timedelta(seconds=ago)
    settings = settings_of(data_dir, needs_key=True)
    key = apps.seal_key(settings)

    async def prepare(conn: Connection) -> Callback:
        actor = await operator(conn, org)
        found = await simulated.find_number(conn, key, actor.organization_id, number)
        if status is not None:
            return await simulated.status(
                conn, shell(), found, message=message or "", status=status, at=at, error=error
            )
        return await simulated.message(conn, shell(), found, user=from_ or "", text=text, at=at, type=type)

    made = on_database(prepare, settings)
    if from_ is not None:
        _let_be_answered(made.number, (phones.read(from_, region=None) or "").removeprefix("+"), ago)
    path = f"/in/whatsapp/{made.number.app.id}"
    base_url = address(url, data_dir)
    headers = {"content-type": "application/json", "X-Hub-Signature-256": made.signature.decode()}
    answered, got, _ = exchange("POST", base_url, path, headers=headers, data=made.body)
    if answered != 200:
        raise Problem(f"{base_url}{path} answered {answered}")
    show({"number": made.number.digits, "wamid": made.wamid, "request_id": got.get("x-request-id")}, json)


@app.command("dead-letters")
def list_dead_letters(
    items: Annotated[bool, typer.Option("--items", help="Also show the text.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 50,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List callback items that could not be parsed or applied, newest first. They are kept for eight days.

    \b
    Example:
      heliograph whatsapp inbound dead-letters --items
    """
    settings = settings_of(data_dir, needs_key=True)
    key = apps.seal_key(settings)
    found = on_database(lambda conn: dead_letters.list_all(conn, key, limit=limit), settings)
    shown = [
        {"received_at": one.received_at, "reason": one.reason, "id": one.id}
        | ({"item": one.raw.decode("utf-8", "replace")} if items else {})
        for one in found
    ]
    show(shown, json, (*COLUMNS, "item") if items else COLUMNS, limit=limit)


@app.command("drop")
def drop(
    id: Annotated[UUID, typer.Argument(metavar="ITEM_ID", help="Id of the item, from `dead-letters`.")],
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Give up an item that could not be applied: it is permanently deleted.

    \b
    Example:
      heliograph whatsapp inbound drop 0199c0de-0000-7000-8000-000000000000 --yes
    """
    settings = settings_of(data_dir)
    if not yes:
        on_database(lambda conn: dead_letters.demand(conn, id=id), settings)
        confirm(f"Delete item {id}?")
    by = msgspec.structs.replace(shell(), reason=reason)
    on_database(lambda conn: dead_letters.drop(conn, id=id, by=by), settings)
    show({"id": id, "state": "dropped"}, json)


@app.command("retry")
def retry(
    id: Annotated[
        UUID | None, typer.Argument(metavar="[ITEM_ID]", help="Id of one item, from `dead-letters`; all without it.")
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Retry items that could not be applied, for example after syncing a number or upgrading.

    \b
    Examples:
      heliograph whatsapp inbound retry
      heliograph whatsapp inbound retry 0199c0de-0000-7000-8000-000000000000
    """
    settings = settings_of(data_dir, needs_key=True)

    async def work(_: Connection) -> tuple[int, int]:
        pool = await open_pool(settings.database_url, size=2)
        try:
            return await retries.retry(pool, apps.seal_key(settings), id=id)
        finally:
            await pool.close()

    looked_at, done = on_database(work, settings)
    if id is not None and not looked_at:
        raise NotFound("There is no such item.", id=str(id))
    if is_for_programs(json):
        show({"looked_at": looked_at, "applied": done}, json)
    say(f"{done} of {looked_at} applied.")


def _let_be_answered(number: Number, user: str, ago: float) -> None:
    """Open the user's service window at the simulated Graph API, if the number exists there, since it accepts replies
    only according to its own records."""
    if not number.base_url.startswith("http://") or ago >= WINDOW:  # Meta is https; http is for this machine only
        return
    window = {"user": user, "number": number.graph_id, "seconds": WINDOW - ago}
    with contextlib.suppress(Problem):  # no simulator listens there: the message is received all the same
        exchange("POST", number.base_url, "/_sim/windows", headers={}, data=msgspec.json.encode(window), timeout=5.0)
