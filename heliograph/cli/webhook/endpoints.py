"""`heliograph webhook`: creates, shows, changes and pauses webhook endpoints, and rotates their secrets."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated
from uuid import UUID

import msgspec
import typer

from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import DataDir, Org, on_database, operator, settings_of
from heliograph.cli.terminal.printing import Json, as_plain, group, in_options, say, show
from heliograph.cli.webhook.kit import EndpointId, Mode, owner
from heliograph.webhooks import changing, endpoints, figures
from heliograph.webhooks.changing import Changes
from heliograph.webhooks.endpoints import Endpoint
from heliograph.webhooks.figures import MOST_WAITING, Health
from heliograph.webhooks.recording.events import KINDS

app = group("Endpoints.")

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
#: Options by an endpoint's fields.
NAMES = {"url": "URL", "subscribed_events": "--event", "description": "--description"}


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
    mode: Mode = "live",
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

    with in_options(**NAMES):
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
        return await figures.of(conn, await owner(conn, id), id=id, hours=hours)

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
        "missed_since": health.endpoint.waits_from,
        "waiting": min(health.waiting, MOST_WAITING),
        "more_are_waiting": health.waiting > MOST_WAITING,
        "next_attempt_at": health.next_at,
    }
    show(as_plain(health.endpoint) | {name: as_plain(value) for name, value in told.items()}, json)


@app.command("update")
def update(
    id: EndpointId,
    url: Annotated[str | None, typer.Option(help="Another URL.")] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Kinds of events to send, replacing the previous ones. Repeatable."),
    ] = None,
    description: Annotated[str | None, typer.Option(help="What the endpoint is for, up to 200 characters.")] = None,
    enable: Annotated[bool | None, typer.Option("--enable/--disable", help="Enable it again, or disable it.")] = None,
    recover: Annotated[
        bool, typer.Option("--recover", help="With --enable: also send the events that it missed.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Change an endpoint. Its secret stays the same. Disabling one discards what is queued for it.

    \b
    Example:
      heliograph webhook update 0199c0de-0000-7000-8000-000000000000 --url https://example.com/new --enable
    """
    if recover and enable is not True:
        raise typer.BadParameter("goes with --enable", param_hint="--recover")
    asked = Changes(
        url=url, subscribed_events=event, description=description, disabled=_inverse(enable), recover=recover or None
    )
    if asked == Changes():
        raise typer.BadParameter("say what to change: --url, --event, --description, --enable or --disable")
    _changed(id, asked, json, data_dir)


@app.command("pause")
def pause(id: EndpointId, json: Json = False, data_dir: DataDir = None) -> None:
    """Pause an endpoint: nothing is sent to it, and new events wait for at most 30 days.

    \b
    Example:
      heliograph webhook pause 0199c0de-0000-7000-8000-000000000000
    """
    _changed(id, Changes(paused=True), json, data_dir)
    say("Paused. `heliograph webhook resume` sends what waits.")


@app.command("resume")
def resume(id: EndpointId, json: Json = False, data_dir: DataDir = None) -> None:
    """Resume a paused endpoint, and send what has been waiting for it.

    \b
    Example:
      heliograph webhook resume 0199c0de-0000-7000-8000-000000000000
    """
    _changed(id, Changes(paused=False), json, data_dir)
    say("Resumed. `heliograph webhook replays` shows the progress of what waited.")


def _changed(id: UUID, asked: Changes, json: bool, data_dir: Path | None) -> None:
    settings = settings_of(data_dir, needs_key=True)

    async def work(conn: Connection) -> Endpoint:
        rules = endpoints.rules(settings)
        return await changing.change(conn, await owner(conn, id), id=id, changes=asked, rules=rules)

    with in_options(**NAMES):
        changed = on_database(work, settings)
    show(changed, json, COLUMNS)


@app.command("rotate")
def rotate(id: EndpointId, json: Json = False, data_dir: DataDir = None) -> None:
    """Rotate an endpoint's secret. The new secret is shown only once.

    For 24 hours both secrets sign: `webhook-signature` has a signature with each. `x-service-signature` has one, made
    with the new secret within a second: a receiver that verifies it should accept both secrets first.

    \b
    Example:
      heliograph webhook rotate 0199c0de-0000-7000-8000-000000000000
    """
    settings = settings_of(data_dir, needs_key=True)

    async def work(conn: Connection) -> tuple[Endpoint, str, datetime]:
        return await endpoints.rotate_secret(conn, await owner(conn, id), id=id, rules=endpoints.rules(settings))

    endpoint, secret, old_until = on_database(work, settings)
    show(as_plain(endpoint) | {"signing_secret": secret, "previous_secret_expires_at": as_plain(old_until)}, json)
    say("Store the secret now: it is not shown again.")


def _inverse(given: bool | None) -> bool | None:
    return None if given is None else not given
