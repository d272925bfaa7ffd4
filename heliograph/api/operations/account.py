"""The account and its usage: shapes and handlers. The rules are those of `accounts`: plans, quota and usage."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.accounts import organizations, plans, quota, usage
from heliograph.api.door.operation import Call
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import HasMore, Items, NextCursor, Success, Time
from heliograph.base.database.clock import iso, iso_or_none


class AccountOrganization(msgspec.Struct):
    """The organization."""

    id: Annotated[UUID, Meta(description="Id of the organization.")]
    name: Annotated[str, Meta(description="Name of the organization.")]


class Subscription(msgspec.Struct, rename="camel"):
    """The plan and its current period."""

    plan: Annotated[str, Meta(description="Name of the plan.")]
    status: Annotated[
        Literal["active", "trial", "past_due", "suspended", "canceled"],
        Meta(description="State of the subscription."),
    ]
    current_period_start: Annotated[Time | None, Meta(description="Start of the current period.")]
    current_period_end: Annotated[Time | None, Meta(description="Start of the next period.")]


class AccountQuota(msgspec.Struct, rename="camel"):
    """The message quota. Exact: it changes in the transaction that accepts a message."""

    unit: Annotated[Literal["message"], Meta(description="Unit of the quota.")]
    total: Annotated[int, Meta(description="Granted for the current period.")]
    used: Annotated[int, Meta(description="Used so far.")]
    remaining: Annotated[int, Meta(description="`total` minus `used`; equals the sum of the usage ledger.")]
    resets_at: Annotated[Time | None, Meta(description="When the plan's quota is renewed; null if it is not renewed.")]


class Account(msgspec.Struct, rename="camel"):
    """The organization, its subscription and its quota."""

    organization: Annotated[AccountOrganization, Meta(description="The organization.")]
    commercial_state: Annotated[
        Literal["active", "trial", "past_due", "suspended", "closed"],
        Meta(
            description=(
                "State of the organization. While `suspended` or `closed` it can read and export, and end or stop "
                "something, such as the access of a leaked key, but not send or change anything."
            )
        ),
    ]
    subscription: Annotated[Subscription | None, Meta(description="The subscription; null if there is none.")]
    quota: Annotated[AccountQuota, Meta(description="The message quota.")]


class AccountSummary(msgspec.Struct):
    """The current state of the account."""

    success: Success
    account: Annotated[Account, Meta(description="The account.")]


class UsageQuery(paging.PageQuery, frozen=True, rename="camel", kw_only=True):
    """Filters for the ledger."""

    date_from: paging.DateFrom = None
    date_to: paging.DateTo = None


class UsageEntry(msgspec.Struct, rename="camel"):
    """One change to the quota. The ledger is append-only, and the sum of `quantity` equals the remaining quota."""

    id: Annotated[UUID, Meta(description="Id of the entry; for `usage`, the id of the message.")]
    type: Annotated[Literal["usage", "refund", "adjustment", "grant"], Meta(description="Kind of change.")]
    channel: Annotated[Literal["sms", "whatsapp"], Meta(description="The channel charged.")]
    quantity: Annotated[int, Meta(description="Change in messages; negative when quota is used.")]
    balance_after: Annotated[int, Meta(description="Remaining quota after this change.")]
    segments: Annotated[
        int | None, Meta(description="Number of segments of the message; null if the entry is not about a message.")
    ]
    message_id: Annotated[UUID | None, Meta(description="The message, if the entry is about one.")]
    campaign_id: Annotated[UUID | None, Meta(description="The campaign of the message, if any.")]
    reason: Annotated[str | None, Meta(description="The operator's reason, if one was given.")]
    created_at: Annotated[Time, Meta(description="When the quota changed.")]


class UsageList(msgspec.Struct, rename="camel"):
    """A page of the ledger, newest first."""

    success: Success
    items: Items[UsageEntry]
    next_cursor: NextCursor
    has_more: HasMore


async def get_account_summary(call: Call) -> AccountSummary:
    """Get the account's state, subscription and quota."""
    organization = await organizations.get(call.conn, id=call.actor.organization_id)
    balance = await quota.get(call.conn, call.actor.organization_id)
    subscribed = plans.subscription(organization)
    return AccountSummary(
        True,
        Account(
            AccountOrganization(organization.id, organization.name),
            organization.state,  # type: ignore[arg-type]
            None if subscribed is None else _subscription(subscribed),
            AccountQuota("message", balance.total, balance.used, balance.remaining, iso_or_none(balance.resets_at)),
        ),
    )


async def list_usage(call: Call, query: UsageQuery) -> UsageList:
    """List the usage ledger.

    Every change to the quota, newest first: messages, grants, adjustments and refunds.
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
    return Subscription(one.plan, one.status, iso_or_none(one.start), iso_or_none(one.end))  # type: ignore[arg-type]


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
