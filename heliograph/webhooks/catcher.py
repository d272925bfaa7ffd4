"""The catcher: an endpoint that this installation itself provides for an hour, so that a first look at events requires
neither a program nor a tunnel.

It is a row of `webhook_endpoints`, one per mode of an organization, reopened as often as needed. A worker signs its
deliveries as for any other endpoint, but stores them (`delivery/catching.py`) instead of posting them.

The rule nobody may break: caught events are visible to their organization only, and deleted when the catcher ends.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.webhooks import changing, endpoints
from heliograph.webhooks.delivery import signing
from heliograph.webhooks.endpoints import CATCHER, ENDED, FORGET_CAUGHT, LOCK_ORGANIZATION, EndpointRules
from heliograph.webhooks.recording import at_rest, stopping
from heliograph.webhooks.recording.events import KINDS

#: How long a catcher is open.
OPEN_FOR = timedelta(hours=1)
#: Catchers ended in one step.
STEP = 100


class Catcher(msgspec.Struct, frozen=True):
    """An open catcher."""

    id: UUID
    until: datetime


class CaughtAttempt(msgspec.Struct, frozen=True):
    """One attempt, as it would have been sent. `is_genuine`: a current secret produces its signature."""

    event_id: UUID
    at: datetime
    headers: list[tuple[str, str]]
    body: str
    is_genuine: bool

    @property
    def kind(self) -> str:
        """The kind of event, from its body."""
        return str(msgspec.json.decode(self.body).get("type", ""))


CURRENT = """
SELECT id, catches_until FROM webhook_endpoints
 WHERE organization_id = $1 AND mode = $2 AND catches_until IS NOT NULL AND status = 'active' AND catches_until > now()
"""


async def current(conn: Connection, actor: Actor) -> Catcher | None:
    """The open catcher of the actor's mode, if any."""
    row = await conn.fetchrow(CURRENT, actor.organization_id, actor.mode)
    return None if row is None else Catcher(*row.values())


EVER = "SELECT EXISTS (SELECT FROM webhook_endpoints WHERE organization_id = $1 AND catches_until IS NOT NULL)"


async def was_opened(conn: Connection, actor: Actor) -> bool:
    """Whether the actor's organization has ever opened one, in either mode."""
    return bool(await conn.fetchval(EVER, actor.organization_id))


KNOWN = """
SELECT id FROM webhook_endpoints WHERE organization_id = $1 AND mode = $2 AND catches_until IS NOT NULL
"""
OPEN = """
INSERT INTO webhook_endpoints (organization_id, id, mode, url, subscribed_events, secret, created_at, catches_until)
VALUES ($1, $2, $3, $4, $5, $6, now(), now() + $7)
ON CONFLICT (organization_id, id) DO UPDATE
   SET status = 'active', disabled_at = NULL, disabled_reason = NULL, secret = excluded.secret,
       old_secrets = '{}', old_secrets_until = '{}', subscribed_events = excluded.subscribed_events,
       dropped = 0, waits_from = NULL,
       failing_since = NULL, consecutive_failures = 0, catches_until = excluded.catches_until
RETURNING id, catches_until
"""


async def open(conn: Connection, actor: Actor, *, rules: EndpointRules) -> tuple[Catcher, str]:
    """Open the catcher of the actor's mode for an hour from now, empty and with a new secret, which is returned here
    and nowhere else. It gets every kind of event."""
    async with conn.transaction():
        # Two requests must not both create the first one.
        if await conn.fetchval(LOCK_ORGANIZATION, actor.organization_id) is None:
            raise NotFound(resource="organization", id=str(actor.organization_id))
        id: UUID = await conn.fetchval(KNOWN, actor.organization_id, actor.mode) or uuid7()
        secret = signing.new_secret()
        sealed = endpoints.seal_secret(rules, organization_id=actor.organization_id, id=id, secret=secret)
        await conn.execute(FORGET_CAUGHT, actor.organization_id, id)
        row = await conn.fetchrow(OPEN, actor.organization_id, id, actor.mode, CATCHER, list(KINDS), sealed, OPEN_FOR)
        assert row is not None
        made = Catcher(*row.values())
        after = {"url": CATCHER, "mode": actor.mode, "catches_until": made.until}
        await audit.record(conn, actor, "webhook.created", object_id=id, after=after)
    return made, secret


async def close(conn: Connection, actor: Actor) -> None:
    """End the catcher of the actor's mode early, and delete what it caught. Idempotent."""
    found = await current(conn, actor)
    if found is not None:
        await changing.disable(conn, actor, id=found.id)


CAUGHT = """
SELECT event_id, caught_at, headers, body FROM webhook_caught
 WHERE organization_id = $1 AND endpoint_id = $2 ORDER BY caught_at DESC, event_id DESC LIMIT $3
"""


async def caught(
    conn: Connection, actor: Actor, *, catcher: Catcher, rules: EndpointRules, limit: int
) -> list[CaughtAttempt]:
    """The attempts that it caught, newest first, with each signature checked as by a receiver."""
    secrets = await endpoints.secrets(conn, actor, id=catcher.id, rules=rules)
    rows = await conn.fetch(CAUGHT, actor.organization_id, catcher.id, limit)
    bodies = await at_rest.opened_bodies(conn, actor.organization_id, [(row["event_id"], row["body"]) for row in rows])
    found = []
    for (event_id, at, lines, _), body in zip(rows, bodies, strict=True):
        parts = [line.partition(": ") for line in lines.split("\r\n") if line]
        headers = [(name, value) for name, _, value in parts]
        known = dict(headers)
        problem = signing.verify(
            secrets,
            timestamp=known["x-service-timestamp"],
            signature=known["x-service-signature"],
            body=body.encode(),
            now=at,
        )
        found.append(CaughtAttempt(event_id, at, headers, body, problem is None))
    return found


ANY_PAST = """EXISTS (SELECT FROM webhook_endpoints
 WHERE status = 'active' AND catches_until IS NOT NULL AND catches_until <= now())"""
# In the order of ids, in which `recording/results.py` locks them too.
PAST = """
SELECT organization_id, id FROM webhook_endpoints
 WHERE status = 'active' AND catches_until IS NOT NULL AND catches_until <= now()
 ORDER BY organization_id, id LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
"""
END = """
UPDATE webhook_endpoints SET status = 'disabled', disabled_at = now(), disabled_reason = $3
 WHERE organization_id = $1 AND id = $2
"""


async def end_past(conn: Connection) -> int:
    """End the catchers whose hour is over, and delete what they caught and what is queued for them; returns how many
    were ended."""
    async with conn.transaction():
        past = await conn.fetch(PAST, STEP)
        for organization_id, id in past:
            await conn.execute(END, organization_id, id, ENDED)
            await conn.execute(FORGET_CAUGHT, organization_id, id)
        await stopping.stop_disabled(conn, dict.fromkeys([tuple(row) for row in past], ENDED))
    return len(past)
