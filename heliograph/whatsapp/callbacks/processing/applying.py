"""Applies routed items, of all kinds, in one transaction, in the order in which their rows are locked.

    statuses                        match_statuses, move_many: state, money, events of messages
    messages                        received.receive
    calls                           calls.note
    templates, numbers, accounts    apply_items of each

The rule nobody may break: repeating, reordering or regrouping items changes nothing, since each kind recognizes items
that have already been applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import groupby
from uuid import UUID

import asyncpg
import structlog

from heliograph.base.database.pool import Connection, is_down
from heliograph.sealing.text_keys import Sealing
from heliograph.suppliers.whatsapp_cloud.callbacks.items import (
    AccountItem,
    AlarmItem,
    CallItem,
    CapabilityItem,
    MessageItem,
    NumberItem,
    StatusItem,
    TemplateItem,
)
from heliograph.webhooks.recording.handover import Handover
from heliograph.whatsapp.callbacks import calls, conversations, matching, received
from heliograph.whatsapp.callbacks.calls import Call
from heliograph.whatsapp.callbacks.matching import Found, Matched, NamedUsers
from heliograph.whatsapp.callbacks.processing.routing import NUMBERED, Work
from heliograph.whatsapp.callbacks.received import ReceivedItem
from heliograph.whatsapp.dispatch import outcomes
from heliograph.whatsapp.mirror import numbers, template_sync, warnings
from heliograph.whatsapp.money.rates import RateBook
from heliograph.whatsapp.status import move_many

log = structlog.get_logger()

#: Lock conflicts with other transactions: not an item's fault, so the whole batch is retried.
TRANSIENT = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.LockNotAvailableError,
)
#: Errors caused by a schema of another version: not an item's fault, so all items wait.
_SCHEMA = (asyncpg.SyntaxOrAccessError,)


def blames_item(error: Exception) -> bool:
    """Whether an item that fails with this error is to blame itself, and would fail again."""
    return not (is_down(error) or isinstance(error, (*TRANSIENT, *_SCHEMA)))


async def apply(
    conn: Connection,
    works: Sequence[Work],
    *,
    rates: RateBook,
    sealing: Sealing,
    dropped: Counter[str],
    handover: Handover | None = None,
    named: NamedUsers | None = None,
) -> int:
    """Apply items in the caller's transaction; returns the webhook deliveries queued in addition to those handed over.

    Statuses go first: messages and wallets are locked before conversations, here as in sending. Their holds go after
    users' messages: conversations are locked before accounts and numbers.
    """
    found, moved, deliveries = await _statuses(conn, works, rates, dropped, handover, named)
    heard: list[ReceivedItem] = []
    for one in works:
        if isinstance(one.item, MessageItem) and one.number_id is not None:
            if one.item.group:
                dropped["message of a group"] += 1
            else:
                heard.append(ReceivedItem(one.organization_id, one.number_id, one.item, one.at, one.is_bare))
    deliveries += (await received.receive(conn, heard, sealing=sealing))[1]
    called = [
        Call(one.organization_id, one.number_id, one.item, one.at)
        for one in works
        if isinstance(one.item, CallItem) and one.number_id is not None
    ]
    await calls.note(conn, called)
    if found is not None:
        trying = frozenset().union(*{one.trying for one in works})
        tried = [move for move in found.moves if move.message_id in trying]
        deliveries += await outcomes.apply_wider_failures(conn, found.wider_failures, moved, heard=tried)
    changes = [one for one in works if not isinstance(one.item, NUMBERED)]
    changes.sort(key=_account)
    for account, some in groupby(changes, key=_account):
        deliveries += await _changes(conn, *account, list(some))
    return deliveries


def _account(work: Work) -> tuple[UUID, UUID]:
    return work.organization_id, work.account_id


async def _changes(conn: Connection, organization_id: UUID, account_id: UUID, works: Sequence[Work]) -> int:
    """Apply events of one account, in order; returns the number of deliveries queued."""
    templates: list[tuple[TemplateItem, datetime]] = []
    others: list[tuple[NumberItem | CapabilityItem | AccountItem, datetime]] = []
    for one in works:
        match one.item:
            case TemplateItem():
                templates.append((one.item, one.at))
            case NumberItem() | CapabilityItem() | AccountItem():
                others.append((one.item, one.at))
            case AlarmItem():
                codes = sorted({str(error.code) for error in one.item.errors})[:5]
                log.warning("Meta reports an error", account_id=str(account_id), codes=codes)
    deliveries = 0
    if templates:
        deliveries += await template_sync.apply_items(conn, organization_id, account_id, templates)
    if others:
        said = [(item, at) for item, at in others if isinstance(item, AccountItem)]
        await warnings.apply_items(conn, organization_id, account_id, said)
        deliveries += await numbers.apply_items(conn, organization_id, account_id, others)
    return deliveries


async def _statuses(
    conn: Connection,
    works: Sequence[Work],
    rates: RateBook,
    dropped: Counter[str],
    handover: Handover | None,
    named: NamedUsers | None,
) -> tuple[Found | None, Collection[UUID], int]:
    """Apply statuses to their messages; returns what they say, which of these moved, and the webhook deliveries
    queued."""
    matched: list[Matched] = []
    for one in works:
        if isinstance(one.item, StatusItem) and one.number_id is not None:
            if one.item.group or one.item.status not in matching.STATUSES:
                dropped["status of a group" if one.item.group else "unknown status"] += 1
            else:
                matched.append(Matched(one.organization_id, one.number_id, one.item))
    if not matched:
        return None, (), 0
    found = await matching.match_statuses(conn, matched, named)
    announce = await matching.announced(conn, found.moves)
    referred = await conversations.any_referred(conn)
    # From here on wallets are locked and their organizations' sends wait: no unnecessary queries.
    moved, deliveries = await move_many(conn, found.moves, rates=rates, announce=announce, handover=handover)
    await matching.name_users(conn, found.names)
    if referred:
        sent = [(move.organization_id, move.message_id) for move in found.moves if move.message_id in moved]
        await conversations.note_answers(conn, sent)
    return found, moved, deliveries
