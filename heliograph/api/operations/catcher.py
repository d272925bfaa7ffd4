"""The catcher: shapes and handlers. The rule is `webhooks.catcher`."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call, operation
from heliograph.api.shapes.fields import Success, Time
from heliograph.api.shapes.paging import Limit
from heliograph.base.database.clock import iso
from heliograph.webhooks import catcher
from heliograph.webhooks.catcher import Catcher, CaughtAttempt
from heliograph.webhooks.delivery.catching import MOST


class CatcherQuery(msgspec.Struct, frozen=True):
    """How many events to show."""

    limit: Limit = 50


class OpenCatcher(msgspec.Struct):
    """An open catcher: an endpoint whose events are stored here instead of being posted."""

    id: Annotated[UUID, Meta(description="Id of its endpoint, for tests, resends and replays.")]
    open_until: Annotated[Time, Meta(description="When it closes, and what it caught is erased.")]


class CaughtEvent(msgspec.Struct):
    """An event as it would have been posted."""

    event_id: Annotated[UUID, Meta(description="Id of the event.")]
    kind: Annotated[str, Meta(description="Kind of event.")]
    caught_at: Annotated[Time, Meta(description="When it was caught.")]
    headers: Annotated[dict[str, str], Meta(description="The headers that identify and sign it.")]
    body: Annotated[str, Meta(description="The body, byte for byte as it is signed.")]
    is_genuine: Annotated[
        bool, Meta(description="Whether its signature was created with a secret that is currently valid.")
    ]


class CatcherOpened(msgspec.Struct, rename="camel"):
    """The catcher and its signing secret, which is shown only in this response."""

    success: Success
    catcher: Annotated[OpenCatcher, Meta(description="The catcher.")]
    signing_secret: Annotated[
        str, Meta(description="The secret that events are signed with. Store it now: it is not shown again.")
    ]


class CatcherShown(msgspec.Struct):
    """The catcher of the requesting key's mode, and what it caught, newest first."""

    success: Success
    catcher: Annotated[OpenCatcher | None, Meta(description="The catcher; null while it is closed.")]
    items: Annotated[list[CaughtEvent], Meta(description=f"The latest events that it caught; at most {MOST} are kept.")]


class CatcherClosed(msgspec.Struct):
    """The catcher is closed, and what it caught is erased."""

    success: Success


@operation(status=201, has_secret=True)
async def open_catcher(call: Call) -> CatcherOpened:
    """Open the catcher.

    For an hour it receives every kind of event of the key's mode, signed as for any endpoint, and stores it instead of
    posting it. Opening it again empties it and creates a new secret.
    """
    opened, secret = await catcher.open(call.conn, call.actor, rules=call.services.webhook_rules)
    return CatcherOpened(True, _shown(opened), secret)


async def get_catcher(call: Call, query: CatcherQuery) -> CatcherShown:
    """Show what the catcher caught."""
    rules = call.services.webhook_rules
    found = await catcher.current(call.conn, call.actor)
    if found is None:
        return CatcherShown(True, None, [])
    caught = await catcher.caught(call.conn, call.actor, catcher=found, rules=rules, limit=query.limit)
    return CatcherShown(True, _shown(found), [_caught(one) for one in caught])


async def close_catcher(call: Call) -> CatcherClosed:
    """Close the catcher.

    Closing it again changes nothing.
    """
    await catcher.close(call.conn, call.actor)
    return CatcherClosed(True)


def _shown(one: Catcher) -> OpenCatcher:
    return OpenCatcher(one.id, iso(one.until))


def _caught(one: CaughtAttempt) -> CaughtEvent:
    return CaughtEvent(one.event_id, one.kind, iso(one.at), dict(one.headers), one.body, one.is_genuine)
