"""An organization's first steps, ticked off by what actually happened: a key, a send, its delivery, and so on."""

from __future__ import annotations

import msgspec

from heliograph import traffic
from heliograph.accounts.api_keys import issued
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.overview import messages
from heliograph.overview.figures import ARRIVED
from heliograph.people import invitations, memberships
from heliograph.sms.accepting import sender_ids
from heliograph.webhooks import catcher, endpoints

#: Latest messages of a mode that are checked for a delivered one.
LATELY = 50
#: Messages of both modes that are scanned for them; limited because every refresh of a home page pays for it.
LOOKED = 500


class Steps(msgspec.Struct, frozen=True):
    """What is done."""

    key: bool
    sent: bool
    delivered: bool
    webhook: bool
    sender: bool
    team: bool
    live: bool


async def steps(conn: Connection, actor: Actor) -> Steps:
    """What the actor's organization has done, in either mode."""
    test, live = (msgspec.structs.replace(actor, mode=mode) for mode in ("test", "live"))
    keys = [one for each in (test, live) for one in await issued.standing(conn, each)]
    sent = [
        await messages.list_page(conn, each, filters=messages.Filters(), limit=LATELY, look=LOOKED)
        for each in (test, live)
    ]
    listed = [one for found in sent for one in found.messages]
    # Retention deletes messages: what was done stays done.
    is_live = bool(sent[1].messages) or await traffic.ever(conn, live)
    hooks = [one for each in (test, live) for one in await endpoints.used(conn, each)]
    return Steps(
        key=any(one.status == "active" for one in keys),
        sent=bool(listed) or is_live or await traffic.ever(conn, test),
        delivered=any(one.delivered_at is not None for one in listed) or await _has_delivered(conn, live, test),
        webhook=any(one.status == "active" for one in hooks) or await catcher.was_opened(conn, actor),
        sender=await sender_ids.any_approved(conn, live),
        team=await memberships.has_colleagues(conn, actor) or bool(await invitations.list_all(conn, actor)),
        live=is_live,
    )


async def _has_delivered(conn: Connection, *actors: Actor) -> bool:
    return any([await traffic.ever(conn, each, statuses=ARRIVED) for each in actors])
