"""Changing an endpoint: its address and events, pausing and resuming it, disabling and enabling it.

    active ◄──► paused       events wait meanwhile, and are recovered when it is resumed
       ▲          │
       └─► disabled ◄┘       events are recovered only on request

The rule nobody may break: an endpoint that stops loses no event. Its queued events leave the queue
(`recording/stopping.py`), and a replay of everything that it never received brings them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound, Problems
from heliograph.webhooks import endpoints, replays
from heliograph.webhooks.endpoints import (
    COLUMNS,
    COUNT_ACTIVE,
    FORGET_CAUGHT,
    LOCK_ORGANIZATION,
    MAX_ACTIVE,
    REQUESTED,
    Endpoint,
    EndpointDisabled,
    EndpointRules,
    TooManyEndpoints,
)
from heliograph.webhooks.recording import stopping

# A worker recording results may be about to disable it.
LOCK = "SELECT id FROM webhook_endpoints WHERE organization_id = $1 AND id = $2 FOR NO KEY UPDATE"
DISABLE = f"""
UPDATE webhook_endpoints
   SET status = 'disabled', paused_at = NULL, disabled_at = coalesce(disabled_at, now()),
       disabled_reason = coalesce(disabled_reason, $3)
 WHERE organization_id = $1 AND id = $2 AND mode = ANY ($4)
RETURNING {COLUMNS}
"""


async def disable(conn: Connection, actor: Actor, *, id: UUID) -> Endpoint:
    """Disable an endpoint and drop what is queued for it. Idempotent. Raises NotFound."""
    async with conn.transaction():
        await replays.lock(conn, actor, endpoint_id=id)
        await conn.fetchval(LOCK, actor.organization_id, id)
        before = await endpoints.get(conn, actor, id=id)
        row = await conn.fetchrow(DISABLE, actor.organization_id, id, REQUESTED, actor.modes)
        if row is None:
            raise NotFound("There is no such webhook endpoint.", resource="webhook_endpoint", id=str(id))
        if before.status == "disabled":
            return Endpoint(**row)
        await stopping.stop(conn, [(actor.organization_id, id)])
        await replays.cancel(conn, actor, endpoint_id=id)
        if before.catches_until is not None:
            await conn.execute(FORGET_CAUGHT, actor.organization_id, id)
        after = await endpoints.get(conn, actor, id=id)
        await audit.record(conn, actor, "webhook.disabled", object_id=id, before=before, after=after)
    return after


# A pause is not a failure: the period after which a failing endpoint is disabled is paused too. Nor do failures at
# another address count toward it. $9: it is enabled without the events that it missed.
CHANGE = f"""
UPDATE webhook_endpoints
   SET url = $4, subscribed_events = $5, description = $6, status = $7::text,
       disabled_at = CASE $7 WHEN 'disabled' THEN coalesce(disabled_at, now()) END,
       disabled_reason = CASE $7 WHEN 'disabled' THEN coalesce(disabled_reason, $8) END,
       paused_at = CASE $7 WHEN 'paused' THEN coalesce(paused_at, now()) END,
       dropped = CASE WHEN $7 = 'active' OR $9 THEN 0 ELSE dropped END,
       waits_from = CASE WHEN $7 = 'active' THEN NULL WHEN $9 THEN now() ELSE waits_from END,
       enabled_at = CASE WHEN $9 THEN now() ELSE enabled_at END,
       failing_since = CASE WHEN status = 'disabled' AND $7 <> 'disabled' THEN NULL
                            WHEN status = 'paused' AND $7 = 'active' THEN failing_since + (now() - paused_at)
                            ELSE failing_since END,
       moved_at = CASE WHEN url <> $4 THEN now()
                       WHEN status = 'paused' AND $7 = 'active' AND moved_at IS NOT NULL
                       THEN least(moved_at + (now() - paused_at), now())
                       ELSE moved_at END,
       consecutive_failures = CASE WHEN status = 'disabled' AND $7 <> 'disabled' THEN 0 ELSE consecutive_failures END
 WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3)
RETURNING {COLUMNS}
"""


class Changes(msgspec.Struct, frozen=True):
    """Changes of an endpoint; None: unchanged."""

    url: str | None = None
    subscribed_events: Sequence[str] | None = None
    description: str | None = None
    disabled: bool | None = None
    paused: bool | None = None
    #: With `disabled` False: whether missed events are sent too.
    recover: bool | None = None


def check_together(changes: Changes) -> None:
    """Raises Invalid for changes that contradict each other."""
    wrong = Problems()
    if changes.recover is not None and changes.disabled is not False:
        wrong.add("recover", "conflict", "`recover` goes with `disabled`: false")
    if changes.disabled and changes.paused is not None:
        wrong.add("paused", "conflict", "`paused` cannot be given when `disabled` is true")
    wrong.report()


async def change(conn: Connection, actor: Actor, *, id: UUID, changes: Changes, rules: EndpointRules) -> Endpoint:
    """Change an endpoint; its secret stays. Raises Invalid, NotFound, EndpointDisabled if a disabled one is to be
    paused or resumed, and TooManyEndpoints if enabling it would exceed the limit of active endpoints. Of a catcher,
    only events and description can change; one that has ended is reopened by `catcher.open`.

    Nothing is attempted while an endpoint is paused; events recorded meanwhile or already waiting are sent once it is
    resumed, up to REPLAY_DAYS back. Disabling drops what is queued, as `disable` does; an enabled endpoint starts
    without failures, and never gets the events that it missed; with `recover`, it gets those too.
    """
    check_together(changes)
    async with conn.transaction():
        await conn.fetchval(LOCK_ORGANIZATION, actor.organization_id)
        await replays.lock(conn, actor, endpoint_id=id)
        await conn.fetchval(LOCK, actor.organization_id, id)
        before = await endpoints.get(conn, actor, id=id)
        wrong = Problems()
        kinds, description = before.subscribed_events, before.description
        if before.catches_until is not None:
            if changes.disabled:
                return await disable(conn, actor, id=id)
            if before.status != "active":
                raise EndpointDisabled(id=str(id), reason=before.disabled_reason)
            if changes.url not in (None, before.url):
                wrong.add("url", "format", "`url` cannot be changed: this endpoint is a catcher")
            if changes.paused:
                wrong.add("paused", "conflict", "a catcher cannot be paused")
        elif changes.url is not None:
            with wrong.gathering():
                endpoints.check(changes.url, rules)
        if changes.subscribed_events is not None:
            with wrong.gathering():
                kinds = endpoints.checked_kinds(changes.subscribed_events)
        if changes.description is not None:
            with wrong.gathering():
                description = endpoints.checked_description(changes.description)
        wrong.report()
        status = _status(before, changes)
        if before.status == "disabled" != status and (
            await conn.fetchval(COUNT_ACTIVE, actor.organization_id) >= MAX_ACTIVE
        ):
            raise TooManyEndpoints(limit=MAX_ACTIVE)
        row = await conn.fetchrow(
            CHANGE,
            actor.organization_id,
            id,
            actor.modes,
            changes.url or before.url,
            kinds,
            description,
            status,
            REQUESTED,
            before.status == "disabled" != status and not changes.recover,
        )
        if row is None:
            raise NotFound("There is no such webhook endpoint.", resource="webhook_endpoint", id=str(id))
        after = Endpoint(**row)
        if before.status != status:
            after = await _moved(conn, actor, before, after, recover=bool(changes.recover))
        await audit.record(conn, actor, "webhook.changed", object_id=id, before=before, after=after)
    return after


async def _moved(conn: Connection, actor: Actor, before: Endpoint, after: Endpoint, *, recover: bool) -> Endpoint:
    """Apply the effects of a changed status."""
    if after.status == "active":
        await replays.release(conn, actor, endpoint_id=after.id)
        if before.waits_from is not None and (before.status == "paused" or recover):
            await replays.recover(conn, actor, endpoint=after, since=before.waits_from)
        return after
    if before.status == "active":
        left = await stopping.stop(conn, [(actor.organization_id, after.id)])
        if after.status == "paused":
            await replays.hold(conn, actor, endpoint_id=after.id, oldest=left.get(after.id))
    if after.status == "disabled":
        await replays.cancel(conn, actor, endpoint_id=after.id)
    return await endpoints.get(conn, actor, id=after.id)


def _status(before: Endpoint, changes: Changes) -> str:
    if changes.disabled:
        return "disabled"
    status = "active" if changes.disabled is False and before.status == "disabled" else before.status
    if changes.paused is None:
        return status
    if status == "disabled":
        raise EndpointDisabled(id=str(before.id), reason=before.disabled_reason)
    return "paused" if changes.paused else "active"
