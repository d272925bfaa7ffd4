"""Calls from users to an organization's numbers: a call opens the service window as a message does, answered or not.

Nothing else about a call is kept: another program takes the calls, and subscribed the number to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.consent import handing_on
from heliograph.suppliers.whatsapp_cloud.callbacks.items import CallItem
from heliograph.whatsapp.callbacks import conversations, number_changes
from heliograph.whatsapp.callbacks.conversations import User, UserActivity
from heliograph.whatsapp.callbacks.number_changes import UserEvent


class Call(msgspec.Struct, frozen=True, gc=False):
    """A call, and the organization and number that it was made to."""

    organization_id: UUID
    number_id: UUID
    item: CallItem
    #: When its callback arrived.
    at: datetime


async def note(conn: Connection, calls: Sequence[Call]) -> None:
    """Open the service windows of the users who called. Runs in the caller's transaction."""
    if not calls:
        return
    made = [
        UserEvent(User(one.organization_id, one.number_id, one.item.sender, one.item.user_id), min(one.item.at, one.at))
        for one in sorted(calls, key=lambda one: one.item.at)
    ]
    authors, handovers = await number_changes.authors(conn, made)
    users = [one.user for one in authors]
    places = await conversations.of_users(conn, users)
    heard = [
        UserActivity(place, user, one.at, opens=True, referred=False, is_call=True)
        for place, user, one in zip(places, users, made, strict=True)
    ]
    await conversations.open_windows(conn, heard)
    await handing_on.hand_on(conn, handovers)
