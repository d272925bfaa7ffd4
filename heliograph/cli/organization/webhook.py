"""`heliograph webhook`: an organization's webhook endpoints, their attempts, and resending."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

import msgspec
import typer

from heliograph.accounts import organizations
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.cli.terminal.console import (
    DataDir,
    Json,
    Org,
    acting_for,
    as_plain,
    group,
    on_database,
    operator,
    say,
    settings_of,
    show,
)
from heliograph.webhooks import endpoints, figures, history, replays
from heliograph.webhooks.endpoints import Changes, Endpoint
from heliograph.webhooks.figures import MOST_WAITING, Health
from heliograph.webhooks.history import Delivery, Filters, Tried
from heliograph.webhooks.recording.events import KINDS
from heliograph.webhooks.replays import Replay

app = group("Create, list, show, change and disable webhook endpoints; see attempts, resend, replay, test, rotate.")

EndpointId = Annotated[UUID, typer.Argument(metavar="ENDPOINT_ID", help="Id of the endpoint, from `webhook list`.")]

COLUMNS = (
    "id",
    "url",
    "mode",
    "status",
    "disabled_reason",
    "subscribed_events",
    "last_success_at",
    "consecutive_failures",
)
REPLAYS = ("id", "status", "from_at", "to_at", "kinds", "only_failed", "queued", "created_at", "completed_at")
#: Scans of `history.LOOK` attempts for one list.
LOOKS = 10
ATTEMPTS = ("started_at", "kind", "attempt", "result", "status", "duration_ms", "event_id", "message_id", "detail")


@app.command("list")
def list_(org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """List an organization's webhook endpoints, newest first, including those disabled in the last 90 days.

    \b
    Example:
      heliograph webhook list --org "Acme Lda"
    """

    async def work(conn: Connection) -> list[Endpoint]:
        return await endpoints.list_all(conn, await operator(conn, org))

    show(on_database(work, settings_of(data_dir)), json, COLUMNS)


@app.command("create")
def create(
    url: Annotated[str, typer.Argument(help="URL that events are posted to.")],
    event: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Kind of event to send. Repeatable. [default: all]")
    ] = None,
    mode: Annotated[Literal["live", "test"], typer.Option(help="Whether it receives live or test events.")] = "live",
    description: Annotated[str, typer.Option(help="What the endpoint is for, up to 200 characters.")] = "",
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Create a webhook endpoint. Its signing secret is shown only once.

    \b
    Example:
      heliograph webhook create https://example.com/hooks --event message.delivered --event message.failed --org Acme
    """
    settings = settings_of(data_dir, needs_key=True)

    async def work(conn: Connection) -> tuple[Endpoint, str]:
        actor = msgspec.structs.replace(await operator(conn, org), mode=mode)
        rules = endpoints.rules(settings)
        return await endpoints.create(
            conn, actor, url=url, subscribed_events=event or KINDS, rules=rules, description=description
        )

    endpoint, secret = on_database(work, settings)
    show(as_plain(endpoint) | {"signing_secret": secret}, json)
    say("Store the secret now: it is not shown again.")


@app.command("show")
def show_one(
    id: EndpointId,
    hours: Annotated[int, typer.Option(min=1, max=720, help="How far back attempts are counted.")] = 24,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show an endpoint's state, attempts by result, response times and backlog.

    \b
    Example:
      heliograph webhook show 0199c0de-0000-7000-8000-000000000000 --hours 72
    """

    async def work(conn: Connection) -> Health:
        return await figures.of(conn, await _owner(conn, id), id=id, hours=hours)

    health = on_database(work, settings_of(data_dir))
    results: dict[str, int] = {}
    for hour in health.hours:
        for result, count in hour.results.items():
            results[result] = results.get(result, 0) + count
    told = {
        "state": health.state,
        "failing_since": health.failing_since,
        "attempts": results,
        "p50_seconds": health.p50,
        "p95_seconds": health.p95,
        "waiting": min(health.waiting, MOST_WAITING),
        "more_are_waiting": health.waiting > MOST_WAITING,
        "next_attempt_at": health.next_at,
    }
    show(as_plain(health.endpoint) | {name: as_plain(value) for name, value in told.items()}, json)


@app.command("change")
def change(
    id: EndpointId,
    url: Annotated[str | None, typer.Option(help="Another URL.")] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Kinds of events to send, replacing the previous ones. Repeatable."),
    ] = None,
    description: Annotated[str | None, typer.Option(help="What the endpoint is for, up to 200 characters.")] = None,
    enable: Annotated[bool | None, typer.Option("--enable/--disable", help="Enable it again, or disable it.")] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Change an endpoint. Its secret stays the same. Disabling one discards what is queued for it.

    \b
    Example:
      heliograph webhook change 0199c0de-0000-7000-8000-000000000000 --url https://example.com/new --enable
    """
    asked = Changes(url=url, subscribed_events=event, description=description, disabled=_inverse(enable))
    if asked == Changes():
        raise typer.BadParameter("give what to change: --url, --event, --description, --enable or --disable")
    settings = settings_of(data_dir, needs_key=True)

    async def work(conn: Connection) -> Endpoint:
        return await endpoints.change(
            conn, await _owner(conn, id), id=id, changes=asked, rules=endpoints.rules(settings)
        )

    show(on_database(work, settings), json, COLUMNS)


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
    """List the latest attempts of an endpoint, newest first. With a filter, 50,000 are scanned at most.

    \b
    Example:
      heliograph webhook attempts 0199c0de-0000-7000-8000-000000000000 --failed --from 2h
    """
    if failed and result is not None:
        raise typer.BadParameter("give --failed or --result", param_hint="--result")
    from_at = None if since is None else _moment(since, "--from")
    to_at = None if until is None else _moment(until, "--to")
    filters = Filters(history.FAILED if failed else result, kind, from_at, to_at)

    async def work(conn: Connection) -> tuple[list[Tried], datetime | None]:
        owner = await _owner(conn, id)
        found: list[Tried] = []
        page = history.Page([], None)
        for _ in range(LOOKS):
            page = await history.attempts(
                conn, owner, endpoint_id=id, filters=filters, before=page.seen, limit=limit - len(found)
            )
            found += page.attempts
            if page.seen is None:
                return found, None
        return found, page.seen and page.seen[0]

    found, ended_at = on_database(work, settings_of(data_dir))
    show(found, json, ATTEMPTS)
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
        return await history.delivery(conn, await _owner(conn, id), endpoint_id=id, event_id=event)

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
        await replays.resend(conn, await _owner(conn, id), endpoint_id=id, event_id=event)
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
    from_at = _moment(since, "--from")
    to_at = None if until is None else _moment(until, "--to")

    async def work(conn: Connection) -> Replay:
        return await replays.replay(
            conn,
            await _owner(conn, id),
            endpoint_id=id,
            from_at=from_at,
            to_at=to_at,
            kinds=kind or None,
            only_failed=only_failed,
        )

    show(on_database(work, settings_of(data_dir)), json)


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
        return await replays.list_replays(conn, await _owner(conn, id), endpoint_id=id, limit=limit)

    show(on_database(work, settings_of(data_dir)), json, REPLAYS)


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
        actor = await _owner(conn, id)
        event_id = await replays.send_example(conn, actor, endpoint_id=id, request_id=str(uuid7()), kind=kind)
        return {"event_id": event_id, "endpoint_id": id}

    show(on_database(work, settings_of(data_dir)), json)
    say("Queued. `heliograph webhook attempts` shows the outcome.")


@app.command("rotate")
def rotate(id: EndpointId, json: Json = False, data_dir: DataDir = None) -> None:
    """Rotate an endpoint's secret. The new secret is shown only once; for 24 hours both secrets sign.

    \b
    Example:
      heliograph webhook rotate 0199c0de-0000-7000-8000-000000000000
    """
    settings = settings_of(data_dir, needs_key=True)

    async def work(conn: Connection) -> tuple[Endpoint, str, datetime]:
        return await endpoints.rotate_secret(conn, await _owner(conn, id), id=id, rules=endpoints.rules(settings))

    endpoint, secret, old_until = on_database(work, settings)
    show(as_plain(endpoint) | {"signing_secret": secret, "previous_secret_expires_at": as_plain(old_until)}, json)
    say("Store the secret now: it is not shown again.")


def _inverse(given: bool | None) -> bool | None:
    return None if given is None else not given


async def _owner(conn: Connection, id: UUID) -> Actor:
    """An operator, acting for the organization that an endpoint belongs to."""
    return acting_for(await organizations.get(conn, id=await endpoints.owner(conn, id=id)))


_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def _moment(text: str, option: str) -> datetime:
    """Parse `2h` (ago), or a time with its zone."""
    ago = re.fullmatch(r"(\d{1,5})([mhd])", text)
    if ago:
        return clock.now() - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise typer.BadParameter("must be a time such as 2027-01-31T00:00:00Z, or 90m, 2h, 7d ago", param_hint=option)
    return at
