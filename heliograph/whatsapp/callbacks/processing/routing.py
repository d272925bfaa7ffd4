"""Routing: who owns an item of a callback, according to the account and the number that it names.

The rule nobody may break: an item is applied only to the account that its callback names, if that account belongs to
the callback's app, and to a number of that account, found by its digits if it has another id at Meta since it was added
again; a status also to one that has moved there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.sentences import said
from heliograph.suppliers.whatsapp_cloud.callbacks.items import CallItem, MessageItem, StatusItem
from heliograph.whatsapp.callbacks.dead_letters import UNKNOWN_NUMBER, Readable
from heliograph.whatsapp.mirror.accounts import Route

#: Items that name a number. A tuple: `A | B` would be built anew for each item.
NUMBERED = (StatusItem, MessageItem, CallItem)
NOBODY_TRIES: frozenset[UUID] = frozenset()


class Work(msgspec.Struct, frozen=True, gc=False):
    """An item, its owner, and where it came from."""

    item: Readable
    app: UUID
    #: When its callback arrived.
    at: datetime
    organization_id: UUID
    account_id: UUID
    #: Only for statuses and messages.
    number_id: UUID | None = None
    #: Messages of the account that probe after a hold: their outcome decides.
    trying: frozenset[UUID] = NOBODY_TRIES
    #: For messages: see `received.ReceivedItem`.
    is_bare: bool = False


def route(item: Readable, app: UUID, at: datetime, routes: Mapping[str, Route]) -> Work | str:
    """The owner of an item in a callback of `app`, or a text saying why it has none."""
    found = routes.get(item.waba_id)
    if found is None:
        return said("unknown account")
    if found.app != app:
        return said("account of another app")
    if not isinstance(item, NUMBERED):
        return Work(item, app, at, found.organization_id, found.account_id)
    number_id = found.numbers.get(item.phone_number_id)
    if number_id is None and isinstance(item, StatusItem):
        number_id = found.former.get(item.phone_number_id)
    if number_id is None:
        number_id = found.digits.get(item.number_digits or "")
    if number_id is None:
        return UNKNOWN_NUMBER
    return Work(item, app, at, found.organization_id, found.account_id, number_id, found.trying)


def names_newly(item: Readable, found: Route) -> bool:
    """Whether an item that has an owner names its number by an id that is not known here, which it may have now. What a
    removed number has sent is reported under the id that it had."""
    if not isinstance(item, NUMBERED) or item.phone_number_id in found.numbers:
        return False
    return not isinstance(item, StatusItem) or item.phone_number_id not in found.former


# One with the same id before others with the same digits, since a number may get another id when it moves.
MOVED = """
SELECT item.n, known.id
  FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS item (organization_id, graph_id, digits, n)
       CROSS JOIN LATERAL (
       SELECT n.id FROM whatsapp_numbers n
         JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
        WHERE n.organization_id = item.organization_id AND a.app = $4
          AND (n.graph_id = item.graph_id OR n.digits = item.digits)
        ORDER BY n.graph_id = item.graph_id DESC, n.state = 'active' DESC, n.changed_at DESC LIMIT 1) known
"""


async def moved(
    conn: Connection,
    app: UUID,
    strays: Sequence[tuple[StatusItem, datetime]],
    routes: Mapping[str, Route],
    dropped: Counter[str],
    growing: set[tuple[UUID, UUID]],
) -> list[Work]:
    """Those of statuses about numbers that their account is not known to have whose number another account of its
    organization and app has or had: it has moved, and Meta reports under the new account what it sent before."""
    keys = [(routes[item.waba_id].organization_id, item.phone_number_id, item.number_digits) for item, _ in strays]
    asked = list(dict.fromkeys(keys))
    rows = await conn.fetch(MOVED, *(list(column) for column in zip(*asked, strict=True)), app)
    known = {asked[row["n"] - 1]: row["id"] for row in rows}
    works = []
    for (item, at), key in zip(strays, keys, strict=True):
        found = routes[item.waba_id]
        if key in known:
            works.append(Work(item, app, at, found.organization_id, found.account_id, known[key], found.trying))
            growing.add((found.organization_id, found.account_id))
        else:
            dropped[UNKNOWN_NUMBER] += 1
    return works
