"""`heliograph webhook`: an organization's endpoints, and what came of their attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import typer

from heliograph.base.db import Connection
from heliograph.cli.console import DataDir, Json, Org, group, on_database, operator, settings_of, show
from heliograph.webhooks import endpoints, history
from heliograph.webhooks.endpoints import Endpoint
from heliograph.webhooks.history import Tried

app = group("Webhooks: list endpoints and their attempts.")

COLUMNS = ("id", "url", "status", "disabled_reason", "subscribed_events", "last_success_at", "consecutive_failures")
ATTEMPTS = ("started_at", "kind", "attempt", "result", "status", "duration_ms", "event_id", "message_id", "detail")


@app.command("list")
def list_(org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """List an organization's webhook endpoints, newest first, disabled ones included.

    \b
    Example:
      heliograph webhook list --org "Acme Lda"
    """

    async def work(conn: Connection) -> list[Endpoint]:
        return await endpoints.list_all(conn, await operator(conn, org))

    show(on_database(work, settings_of(data_dir)), json, COLUMNS)


@app.command("attempts")
def attempts(
    id: Annotated[UUID, typer.Argument(metavar="ENDPOINT_ID", help="Id of the endpoint, from `webhook list`.")],
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, at most.")] = 50,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List the last attempts of an endpoint, newest first.

    \b
    Example:
      heliograph webhook attempts 0199c0de-0000-7000-8000-000000000000 --limit 10
    """

    async def work(conn: Connection) -> Sequence[Tried]:
        return await history.attempts(conn, endpoint_id=id, limit=limit)

    show(on_database(work, settings_of(data_dir)), json, ATTEMPTS)
