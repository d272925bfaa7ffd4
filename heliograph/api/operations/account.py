"""The account and its usage: shapes and handlers. The rules are those of `accounts`: plans, quota and usage."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.accounts import organizations, plans, quota, usage
from heliograph.api.door.operation import Call
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import HasMore, Items, NextCursor, Success, Time
from heliograph.base.clock import iso


class AccountOrganization(msgspec.Struct):
    """Whose account it is."""

    id: Annotated[UUID, Meta(description="Id of the organization.")]
    name: Annotated[str, Meta(description="Its name.")]


class Subscription(msgspec.Struct, rename="camel"):
    """The plan, and the period that it is in."""

    plan: Annotated[str, Meta(description="Name of the plan.")]
    status: Annotated[
        Literal["active", "trial", "past_due", "suspended", "canceled"],
        Meta(description="How the subscription stands."),
    ]
    current_period_start: Annotated[Time | None, Meta(description="When this period began.")]
    current_period_end: Annotated[Time | None, Meta(description="When the next period begins.")]


class AccountQuota(msgspec.Struct, rename="camel"):
    """How many messages may still be sent. Exact: it changes with the commit that accepts a message."""

    unit: Annotated[Literal["message"], Meta(description="What is counted.")]
    total: Annotated[int, Meta(description="What was granted for this period.")]
    used: Annotated[int, Meta(description="What of it is used.")]
    remaining: Annotated[int, Meta(description="`total` less `used`, and the sum of the usage ledger.")]
    resets_at: Annotated[Time | None, Meta(description="When the plan's quota begins anew; null: it does not.")]


class Account(msgspec.Struct, rename="camel"):
    """An organization's standing."""

    organization: Annotated[AccountOrganization, Meta(description="Whose account it is.")]
    commercial_state: Annotated[
        Literal["active", "trial", "past_due", "suspended", "closed"],
        Meta(description="`suspended` and `closed` can read, but not send or change anything."),
    ]
    subscription: Annotated[Subscription | None, Meta(description="The plan; null without one.")]
    quota: Annotated[AccountQuota, Meta(description="What may still be sent.")]


class AccountSummary(msgspec.Struct):
    """The account as it is now."""

    success: Success
    account: Annotated[Account, Meta(description="The account.")]


class UsageQuery(paging.PageQuery, frozen=True, rename="camel", kw_only=True):
    """Which part of the ledger."""

    date_from: paging.DateFrom = None
    date_to: paging.DateTo = None


class UsageEntry(msgspec.Struct, rename="camel"):
    """One change of the quota. The ledger is only ever added to, and the sum of `quantity` is what remains."""

    id: Annotated[UUID, Meta(description="Of a usage entry, its message's id.")]
    type: Annotated[Literal["usage", "refund", "adjustment", "grant"], Meta(description="Why the quota changed.")]
    channel: Annotated[Literal["sms", "whatsapp"], Meta(description="What it counts for.")]
    quantity: Annotated[int, Meta(description="Messages: negative where the quota became less.")]
    balance_after: Annotated[int, Meta(description="What remained then.")]
    segments: Annotated[int | None, Meta(description="What the message was sent in; null where there is none.")]
    message_id: Annotated[UUID | None, Meta(description="The message that it is about, if any.")]
    campaign_id: Annotated[UUID | None, Meta(description="The campaign that it belongs to, if any.")]
    reason: Annotated[str | None, Meta(description="What an operator gave as the reason, if any.")]
    created_at: Annotated[Time, Meta(description="When the quota changed.")]


class UsageList(msgspec.Struct, rename="camel"):
    """A page of the ledger, newest first."""

    success: Success
    items: Items[UsageEntry]
    next_cursor: NextCursor
    has_more: HasMore


async def get_account_summary(call: Call) -> AccountSummary:
    """State, subscription and quota."""
    organization = await organizations.get(call.conn, id=call.actor.organization_id)
    balance = await quota.get(call.conn, call.actor.organization_id)
    subscribed = plans.subscription(organization)
    return AccountSummary(
        True,
        Account(
            AccountOrganization(organization.id, organization.name),
            organization.state,  # type: ignore[arg-type]
            None if subscribed is None else _subscription(subscribed),
            AccountQuota("message", balance.total, balance.used, balance.remaining, _time(balance.resets_at)),
        ),
    )


async def list_usage(call: Call, query: UsageQuery) -> UsageList:
    """List the usage ledger.

    Every change of the quota, newest first: messages, grants, adjustments and refunds.
    """
    found = await usage.list_page(
        call.conn,
        call.actor,
        limit=query.limit,
        after=paging.after_id(call, "usage"),
        date_from=query.date_from,
        date_to=query.date_to,
    )
    page = paging.page(
        call,
        "usage",
        found.entries,
        position=lambda row: [row.id],
        shown=_entry,
        seen=None if found.seen is None else [found.seen],
    )
    return UsageList(True, *page)


def _subscription(one: plans.Subscription) -> Subscription:
    return Subscription(one.plan, one.status, _time(one.start), _time(one.end))  # type: ignore[arg-type]


def _entry(row: usage.Entry) -> UsageEntry:
    return UsageEntry(
        id=row.id,
        type=row.type,  # type: ignore[arg-type]
        channel=row.channel,  # type: ignore[arg-type]
        quantity=row.quantity,
        balance_after=row.balance_after,
        segments=row.segments,
        message_id=row.message_id,
        campaign_id=row.campaign_id,
        reason=row.reason,
        created_at=iso(row.created_at),
    )


def _time(at: datetime | None) -> str | None:
    return None if at is None else iso(at)
