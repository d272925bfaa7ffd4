"""`heliograph webhook`: attempts at an endpoint, and resending."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

import typer

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.cli.terminal.console import DataDir, on_database, settings_of
from heliograph.cli.terminal.printing import Json, as_plain, group, in_options, say, show
from heliograph.cli.webhook.kit import EndpointId, moment, owner
from heliograph.webhooks import history, replays
from heliograph.webhooks.history import AttemptEntry, Delivery, Filters
from heliograph.webhooks.replays import Replay

app = group("Deliveries.")

REPLAYS = ("id", "status", "from_at", "to_at", "kinds", "only_failed", "cause", "queued", "created_at", "completed_at")
#: Maximum scans of `history.LOOK` attempts each for one list.
LOOKS = 10
ATTEMPTS = ("started_at", "kind", "attempt", "result", "status", "duration_ms", "event_id", "message_id", "detail")


@app.command("attempts")
def attempts(
    id: EndpointId,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 50,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that failed.")] = False,
    result: Annotated[str | None, typer.Option(help="Only those with this result, such as timeout.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="Only events of this kind; examples of any kind are webhook.test.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="WHEN", help="Begun at or after: a time with a time zone, or how long ago (2h)."
        ),
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="WHEN", help="Begun before, likewise.")] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List the latest attempts at an endpoint, newest first. With a filter, at most 50,000 are scanned.

    \b
    Example:
      heliograph webhook attempts 0199c0de-0000-7000-8000-000000000000 --failed --from 2h
    """
    if failed and result is not None:
        raise typer.BadParameter("give --failed or --result", param_hint="--result")
    from_at = None if since is None else moment(since, "--from")
    to_at = None if until is None else moment(until, "--to")
    filters = Filters(history.FAILED if failed else result, kind, from_at, to_at)

    async def work(conn: Connection) -> tuple[list[AttemptEntry], datetime | None]:
        actor = await owner(conn, id)
        found: list[AttemptEntry] = []
        page = history.AttemptPage([], None)
        for _ in range(LOOKS):
            page = await history.attempts(
                conn, actor, endpoint_id=id, filters=filters, before=page.seen, limit=limit - len(found)
            )
            found += page.attempts
            if page.seen is None:
                return found, None
        return found, page.seen and page.seen[0]

    with in_options(result="--result", kind="--kind"):
        found, ended_at = on_database(work, settings_of(data_dir))
    show(found, json, ATTEMPTS, limit=limit)
    if ended_at is not None:  # shown to the millisecond, so the next list begins with that one
        say(f"Not all were scanned. --to {clock.iso(ended_at + timedelta(milliseconds=1))} continues further back.")


@app.command("delivery")
def delivery(
    id: EndpointId,
    event: Annotated[UUID, typer.Argument(metavar="EVENT_ID", help="Id of an event of the same organization.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show the history of one event at an endpoint: each attempt, and the responses to failures and tests.

    \b
    Example:
      heliograph webhook delivery 0199c0de-0000-7000-8000-000000000000 0199c0de-0000-7000-8000-000000000001
    """

    async def work(conn: Connection) -> Delivery:
        return await history.delivery(conn, await owner(conn, id), endpoint_id=id, event_id=event)

    found = on_database(work, settings_of(data_dir))
    rows = []
    for one in found.attempts:
        kept = found.evidence.get(one.started_at)
        told = {} if kept is None else {"address": kept.address, "answer": kept.head.decode("latin-1")}
        rows.append(as_plain(one) | told)
    event_told = {"kind": found.event.kind, "created_at": found.event.created_at, "next_attempt_at": found.next_at}
    show({name: as_plain(value) for name, value in event_told.items()} | {"attempts": rows}, json)


@app.command("resend")
def resend(
    id: EndpointId,
    event: Annotated[UUID, typer.Argument(metavar="EVENT_ID", help="Id of an event of the same organization.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Resend an event to an endpoint.

    \b
    Example:
      heliograph webhook resend 0199c0de-0000-7000-8000-000000000000 0199c0de-0000-7000-8000-000000000001
    """

    async def work(conn: Connection) -> dict[str, UUID]:
        await replays.resend(conn, await owner(conn, id), endpoint_id=id, event_id=event)
        return {"event_id": event, "endpoint_id": id}

    show(on_database(work, settings_of(data_dir)), json)
    say("Queued. `heliograph webhook attempts` shows the outcome.")


@app.command("replay")
def replay(
    id: EndpointId,
    since: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHEN", help="Start of the range: a time with a time zone, or how long ago (2h)."
        ),
    ],
    until: Annotated[
        str | None, typer.Option("--to", metavar="WHEN", help="End of the range, exclusive, likewise. [default: now]")
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only events of this kind. Repeatable. [default: all subscribed kinds]")
    ] = None,
    only_failed: Annotated[
        bool, typer.Option("--only-failed", help="Only events that the endpoint never answered with a 2xx.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Replay a time range to an endpoint. A worker runs it in the background; `webhook replays` shows its progress.

    \b
    Example:
      heliograph webhook replay 0199c0de-0000-7000-8000-000000000000 --from 2h --only-failed
    """
    from_at = moment(since, "--from")
    to_at = None if until is None else moment(until, "--to")

    async def work(conn: Connection) -> Replay:
        return await replays.replay(
            conn,
            await owner(conn, id),
            endpoint_id=id,
            from_at=from_at,
            to_at=to_at,
            kinds=kind or None,
            only_failed=only_failed,
        )

    with in_options(kinds="--kind", **{"from": "--from", "to": "--to"}):
        begun = on_database(work, settings_of(data_dir))
    show(begun, json)


@app.command("replays")
def list_replays(
    id: EndpointId,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number to show.")] = 20,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List an endpoint's replays, newest first.

    \b
    Example:
      heliograph webhook replays 0199c0de-0000-7000-8000-000000000000
    """

    async def work(conn: Connection) -> list[Replay]:
        return await replays.list_replays(conn, await owner(conn, id), endpoint_id=id, limit=limit)

    show(on_database(work, settings_of(data_dir)), json, REPLAYS, limit=limit)


@app.command("test")
def example(
    id: EndpointId,
    kind: Annotated[str, typer.Option(help="Send an example of this kind instead.")] = replays.TEST,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Send a `webhook.test` event, or an example of another kind, to this endpoint only.

    \b
    Example:
      heliograph webhook test 0199c0de-0000-7000-8000-000000000000 --kind message.failed
    """

    async def work(conn: Connection) -> dict[str, UUID]:
        actor = await owner(conn, id)
        event_id = await replays.send_example(conn, actor, endpoint_id=id, request_id=str(uuid7()), kind=kind)
        return {"event_id": event_id, "endpoint_id": id}

    with in_options(kind="--kind"):
        queued = on_database(work, settings_of(data_dir))
    show(queued, json)
    say("Queued. `heliograph webhook attempts` shows the outcome.")
