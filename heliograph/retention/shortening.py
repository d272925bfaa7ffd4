"""Shortening an organization's retention: what the change will delete is shown first.

The rule nobody may break: no message is counted. The figures are those of the roll-ups, so they take the same time
whether an organization has a hundred messages or a hundred million; they cover live messages that were sent, by whole
days (UTC).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.accounts import send_defaults
from heliograph.accounts.send_defaults import SendDefaults
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.retention.forgetting import bounds


class Deleted(msgspec.Struct, frozen=True):
    """What is deleted because it is older than `before`."""

    before: datetime
    #: About how many live messages were sent in that time and have not been deleted yet. Received ones are not counted.
    sent: int


class Shortened(msgspec.Struct, frozen=True):
    """What a change of an organization's retention deletes; None: nothing."""

    #: Messages whose texts are erased, and which stay otherwise.
    texts: Deleted | None = None
    #: Messages that are removed with their numbers and texts.
    messages: Deleted | None = None

    def __bool__(self) -> bool:
        return self.texts is not None or self.messages is not None


class NotAgreed(Exception):
    """The change to `after` deletes something, and nobody has agreed to that."""

    def __init__(self, found: Shortened, after: SendDefaults) -> None:
        super().__init__("nobody has agreed to what this deletes")
        self.found, self.after = found, after


async def change(
    conn: Connection,
    settings: Settings,
    *,
    organization_id: UUID,
    apply: Callable[[], Awaitable[SendDefaults]],
    is_agreed: Callable[[SendDefaults], bool],
) -> tuple[SendDefaults, Shortened]:
    """Run `apply`, which changes the organization's defaults on this connection, and return the new ones with what that
    deletes. `is_agreed`: whether somebody was shown what these delete, and has agreed.

    Raises what `apply` raises, and NotAgreed; the transaction must then be rolled back.
    """
    before = await send_defaults.get(conn, organization_id=organization_id)
    after = await apply()
    found = await _shortened(conn, settings, organization_id, before, after)
    if found and not is_agreed(after):
        raise NotAgreed(found, after)
    return after, found


TIMES = "SELECT now() AS now, created_at FROM organizations WHERE id = $1"
# Messages that wait to be sent stay.
SENT = """
SELECT coalesce(sum(count), 0)::bigint FROM traffic_organizations
 WHERE organization_id = $1 AND day >= $2 AND day < $3 AND status <> 'accepted'
"""


async def _shortened(
    conn: Connection, settings: Settings, organization_id: UUID, before: SendDefaults, after: SendDefaults
) -> Shortened:
    times = await conn.fetchrow(TIMES, organization_id)
    assert times is not None
    now, created_at = times
    at = bounds(settings, now)

    async def deleted(*ends: datetime) -> Deleted | None:
        """What moving the end from the first time to the second deletes; nothing if the organization was created later,
        since its messages are younger."""
        since, until = ends
        if until <= max(since, created_at):
            return None
        days = (since.astimezone(UTC).date(), until.astimezone(UTC).date())
        return Deleted(until, await conn.fetchval(SENT, organization_id, *days))

    # Texts are erased by the shorter of both times.
    texts = [_end(at.now, at.text, one.text_days, one.message_days) for one in (before, after)]
    messages = [_end(at.now, at.metadata, one.message_days) for one in (before, after)]
    removed = await deleted(*messages)
    erased = None if removed is not None and texts[1] == messages[1] else await deleted(*texts)
    return Shortened(erased, removed)


def _end(now: datetime, of_installation: datetime, *days: int | None) -> datetime:
    """The time before which messages have expired."""
    return max([of_installation, *(now - timedelta(days=one) for one in days if one is not None)])
