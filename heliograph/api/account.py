"""The account and its usage: shapes and handlers. The rules are those of `accounts`: plans, quota and usage."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.accounts import organizations, plans, quota, usage
from heliograph.api import paging
from heliograph.api.operation import Call
from heliograph.base.clock import iso

Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class AccountOrganization(msgspec.Struct):
    """Whose account it is."""

    id: UUID
    name: str


class Subscription(msgspec.Struct, rename="camel"):
    """The plan, and the period that it is in."""

    plan: str
    status: Literal["active", "trial", "past_due", "suspended", "canceled"]
    current_period_start: Time | None
    current_period_end: Annotated[Time | None, Meta(description="When the next period begins.")]


class AccountQuota(msgspec.Struct, rename="camel"):
    """How many messages may still be sent. Exact: it changes with the commit that accepts a message."""

    unit: Literal["message"]
    total: int
    used: int
    remaining: Annotated[int, Meta(description="`total` less `used`, and the sum of the usage ledger.")]
    resets_at: Annotated[Time | None, Meta(description="When the plan's quota begins anew; null: it does not.")]


class Account(msgspec.Struct, rename="camel"):
    """An organization's standing."""

    organization: AccountOrganization
    commercial_state: Annotated[
        Literal["active", "trial", "past_due", "suspended", "closed"],
        Meta(description="`suspended` and `closed` can read, but not send or change anything."),
    ]
    subscription: Subscription | None
    quota: AccountQuota


class AccountSummary(msgspec.Struct):
    """The account as it is now."""

    success: Literal[True]
    account: Account


class UsageQuery(paging.PageQuery, frozen=True, rename="camel", kw_only=True):
    """Which part of the ledger."""

    date_from: paging.DateFrom = None
    date_to: paging.DateTo = None


class UsageEntry(msgspec.Struct, rename="camel"):
    """One change of the quota. The ledger is only ever added to, and the sum of `quantity` is what remains."""

    id: Annotated[UUID, Meta(description="Of a usage entry, its message's id.")]
    type: Literal["usage", "refund", "adjustment", "grant"]
    channel: Literal["sms", "whatsapp"]
    quantity: Annotated[int, Meta(description="Messages: negative where the quota became less.")]
    balance_after: int
    segments: Annotated[int | None, Meta(description="What the message was sent in; null where there is none.")]
    message_id: UUID | None
    campaign_id: UUID | None
    reason: str | None
    created_at: Time


class UsageList(msgspec.Struct, rename="camel"):
    """A page of the ledger, newest first."""

    success: Literal[True]
    items: list[UsageEntry]
    next_cursor: str | None
    has_more: bool


async def get_account_summary(call: Call) -> AccountSummary:
    """GET /account"""
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


async def list_usage(call: Call) -> UsageList:
    """GET /usage"""
    query: UsageQuery = call.query
    rows = await usage.entries(
        call.conn,
        call.actor,
        limit=query.limit + 1,
        after=paging.after_id(call, "usage"),
        date_from=query.date_from,
        date_to=query.date_to,
    )
    return UsageList(True, *paging.page(call, "usage", rows, position=lambda row: [row.id], shown=_entry))


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
