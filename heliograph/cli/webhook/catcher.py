"""`heliograph webhook catcher`: a built-in endpoint that records what it receives."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import DataDir, Org, on_database, operator, settings_of
from heliograph.cli.terminal.printing import Json, as_plain, group, say, show
from heliograph.cli.webhook.kit import Mode
from heliograph.webhooks import catcher, endpoints
from heliograph.webhooks.delivery.catching import MOST

app = group("Open a catcher, an endpoint that stores its events here for an hour; see what it caught; close it.")

CAUGHT = ("at", "kind", "event_id", "is_genuine", "body")


@app.command("open")
def open_(mode: Mode = "live", org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Open the catcher for an hour, empty and with a new secret, which is shown only once.

    \b
    Example:
      heliograph webhook catcher open --mode test --org "Acme Lda"
    """
    settings = settings_of(data_dir, needs_key=True)

    async def work(conn: Connection) -> dict[str, Any]:
        opened, secret = await catcher.open(conn, await _of(conn, org, mode), rules=endpoints.rules(settings))
        return as_plain(opened) | {"signing_secret": secret}

    show(on_database(work, settings), json)
    say("Store the secret now: it is not shown again.")


@app.command("show")
def show_(
    mode: Mode = "live",
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="Maximum number to show.")] = 50,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show what the catcher caught, newest first, with each signature verified as by a receiver.

    \b
    Example:
      heliograph webhook catcher show --mode test --json
    """
    settings = settings_of(data_dir, needs_key=True)

    async def work(conn: Connection) -> list[dict[str, Any]] | None:
        actor = await _of(conn, org, mode)
        found = await catcher.current(conn, actor)
        if found is None:
            return None
        caught = await catcher.caught(conn, actor, catcher=found, rules=endpoints.rules(settings), limit=limit)
        return [as_plain(one) | {"kind": one.kind} for one in caught]

    found = on_database(work, settings)
    show(found or [], json, CAUGHT, limit=limit)
    if found is None:
        say("The catcher is closed. `heliograph webhook catcher open` opens it for an hour.")


@app.command("close")
def close(mode: Mode = "live", org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Close the catcher before its hour is over, and erase what it caught.

    \b
    Example:
      heliograph webhook catcher close --mode test
    """

    async def work(conn: Connection) -> dict[str, str]:
        await catcher.close(conn, await _of(conn, org, mode))
        return {"catcher": "closed"}

    show(on_database(work, settings_of(data_dir)), json)


async def _of(conn: Connection, org: str | None, mode: str) -> Actor:
    return msgspec.structs.replace(await operator(conn, org), mode=mode)
