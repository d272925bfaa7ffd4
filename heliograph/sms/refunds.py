"""Refunds of failed messages: always for those that never left, for others according to the installation's policy.

What is refunded is not charged either: a price that was due on submit is taken back (`arrivals.taken_back`).

The rule nobody may break: a refund is made exactly once, in the commit that ends the message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Protocol
from uuid import UUID

from heliograph.accounts import quota
from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid

#: Handed to no supplier, or deferred by every supplier that was tried: always refunded.
UNSENT = "unsent"
#: Class of failure → the reason for the refund in the ledger, which customers read.
REASONS: Mapping[str, str] = {
    UNSENT: "not sent",
    # Every supplier that was tried refused it, or one did because the recipient had opted out with it.
    "refused": "refused",
    # According to receipts.
    "undelivered": "not delivered",
    "failed": "failed",
    "expired": "expired",
    "rejected": "rejected",
    # No receipt arrived, or it was never known whether a supplier has it.
    "unknown": "outcome unknown",
}
#: Classes for which the installation decides.
CHOICES = tuple(name for name in REASONS if name != UNSENT)

CHOSEN = "SELECT class FROM refunded_classes"


class MovedMessage(Protocol):
    """A message that has just moved."""

    @property
    def organization_id(self) -> UUID: ...
    @property
    def id(self) -> UUID: ...
    @property
    def mode(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def sent_at(self) -> datetime | None: ...
    @property
    def failure_code(self) -> str | None: ...
    @property
    def refused(self) -> bool: ...
    @property
    def segments(self) -> int: ...


async def due(conn: Connection, moved: Iterable[MovedMessage]) -> dict[UUID, tuple[MovedMessage, str]]:
    """The messages among these that have just failed and are to be refunded, by id, with their class."""
    failed = [(one, name) for one in moved if (name := class_of(one)) is not None]
    if not failed:
        return {}
    chosen = {UNSENT}
    if any(name != UNSENT for _, name in failed):
        chosen.update(row["class"] for row in await conn.fetch(CHOSEN))
    return {one.id: (one, name) for one, name in failed if name in chosen}


async def give_back(conn: Connection, found: Mapping[UUID, tuple[MovedMessage, str]]) -> None:
    """Refund messages, as `due` returns them. Runs in the caller's transaction, after everything else, since others
    wait for balances."""
    if found:
        messages = [(one.organization_id, one.id, one.segments) for one, _ in found.values()]
        await quota.refund_many(conn, messages, [REASONS[name] for _, name in found.values()])


def class_of(one: MovedMessage) -> str | None:
    """The class of a message's failure; None: it has not failed, or costs nothing."""
    status = one.status
    if status not in REASONS or one.mode != "live":
        return None
    if one.sent_at is not None or status == "unknown":
        return status
    return "refused" if one.refused or one.failure_code == "rejected" else UNSENT


# -- the installation's policy -----------------------------------------------------------------------------------------

LOCK = "SELECT class FROM refunded_classes ORDER BY class FOR UPDATE"
INSERT = "INSERT INTO refunded_classes (class) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING"
DELETE = "DELETE FROM refunded_classes WHERE class = ANY ($1)"


async def policy(conn: Connection) -> dict[str, bool]:
    """The installation's policy: whether each class of failures is refunded."""
    chosen = {row["class"] for row in await conn.fetch(CHOSEN)}
    return {name: name == UNSENT or name in chosen for name in REASONS}


async def change_policy(conn: Connection, changes: Mapping[str, bool], *, by: Principal = SYSTEM) -> dict[str, bool]:
    """Change the policy for some classes; it applies to messages that fail from now on. Raises Invalid, which names the
    class."""
    for name, is_refunded in changes.items():
        if name == UNSENT and not is_refunded:
            raise Invalid((name, "enum", "messages that were never sent are always refunded"))
        if name not in REASONS:
            raise Invalid((name, "enum", f"must be one of {', '.join(REASONS)}"))
    async with conn.transaction():
        await conn.execute(LOCK)
        before = await policy(conn)
        after = {**before, **changes}
        await conn.execute(INSERT, [name for name in CHOICES if after[name]])
        await conn.execute(DELETE, [name for name in CHOICES if not after[name]])
        if after != before:
            await audit.record(conn, by, "refunds.changed", object_id="refunds", before=before, after=after)
    return after
