"""An organization's activity: traffic, webhooks, campaigns, WhatsApp numbers and money, by the functions of its own
dashboard.

The rule nobody may break: nothing is changed here, and no text, recipient's number or secret is shown; whoever has to
see those reveals a message, or views as the organization.
"""

from __future__ import annotations

from typing import Any

from heliograph.accounts import quota
from heliograph.base.database import clock
from heliograph.campaigns import plan, record
from heliograph.campaigns.views import chart_events
from heliograph.console.acting import acting_for, organization
from heliograph.overview import figures, usage
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page
from heliograph.pages.lists import pagination, ranges
from heliograph.pages.pieces import charts
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import ORGANIZATIONS_CHANGE
from heliograph.traffic import Failed
from heliograph.webhooks import figures as webhooks
from heliograph.webhooks.figures import Health
from heliograph.whatsapp import number_states
from heliograph.whatsapp.mirror import onboarding
from heliograph.whatsapp.money import wallet
from heliograph.why.words import Kind, why

#: Countries and failure reasons listed; months of usage.
COUNTRIES, REASONS, MONTHS = 20, 10, 13
USUAL = "7d"
CHANNELS = ("sms", "whatsapp")


async def show_traffic(request: Request) -> Answer:
    """The results of its live messages over time, their countries, and why messages failed."""
    range = ranges.read(request, usual=USUAL)
    until = range.until or clock.now()
    since = range.since or until - ranges.LENGTHS[USUAL]
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        actor = acting_for(request, one)
        comparison = await figures.compare_period(conn, actor, since=since, until=until)
        events = await chart_events.between(conn, actor, since=comparison.since, until=comparison.until)
    drawn = charts.outcome_charts(request, comparison, marks=charts.campaign_marks(request, events))
    if (file := charts.download(request, drawn)) is not None:
        return file
    values = {
        "one": one,
        "range": range,
        "charts": drawn,
        "now": comparison.now,
        "countries": comparison.countries[:COUNTRIES],
        "reasons": [(failed, _kind(failed)) for failed in comparison.reasons[:REASONS]],
    }
    return Page(template="organizations/traffic.html", values=values)


async def show_webhooks(request: Request) -> Answer:
    """Its endpoints and their state, including those disabled recently."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        found = await webhooks.overview(conn, acting_for(request, one))
    values = {
        "one": one,
        "lines": [
            (health, *_endpoint_state(request, health)) for health in found if health.endpoint.catches_until is None
        ],
        "most_waiting": webhooks.MOST_WAITING,
    }
    return Page(template="organizations/webhooks.html", values=values)


async def show_campaigns(request: Request) -> Answer:
    """Its campaigns of a channel, newest first."""
    channel = request.query.get("channel", "")
    channel = channel if channel in CHANNELS else "sms"
    size = pagination.size(request)
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        found = await record.list_page(
            conn, acting_for(request, one), after=pagination.after(request), limit=size + 1, channel=channel
        )
    values = {
        "one": one,
        "channel": channel,
        "rows": found[:size],
        "acts_of": plan.acts,
        "may_change": request.may(permission=ORGANIZATIONS_CHANGE),
        "pages": pagination.pages(request, found[size - 1].id if len(found) > size else None),
    }
    return Page(template="organizations/campaigns.html", values=values)


async def show_whatsapp(request: Request) -> Answer:
    """Its accounts at Meta, and the status of its numbers."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        accounts = await onboarding.accounts_of(conn, one.id)
        numbers = await number_states.list_all(conn, acting_for(request, one)) if accounts else []
    values = {"one": one, "accounts": accounts, "numbers": numbers}
    return Page(template="organizations/whatsapp.html", values=values)


async def show_money(request: Request) -> Answer:
    """Its quota and how fast it is used, its usage by month, and its wallet."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        actor = acting_for(request, one)
        balance = await quota.get(conn, one.id)
        pace = await usage.pace(conn, actor, balance)
        months = await usage.months(conn, actor)
        held = await wallet.show(conn, actor)
    values: dict[str, Any] = {
        "one": one,
        "balance": balance,
        "pace": pace,
        "months": months[:MONTHS],
        "wallet": held,
        "currency": held.currency or wallet.DEFAULT_CURRENCY,
    }
    return Page(template="organizations/money.html", values=values)


def _kind(failed: Failed) -> Kind:
    return "sms_failure" if failed.channel == "sms" else "whatsapp_failure"


def _endpoint_state(request: Request, health: Health) -> tuple[str, str, str]:
    """(state in a word, reason, address) of an endpoint, without the query, which may contain a secret of theirs."""
    reason = health.endpoint.disabled_reason
    known = None if reason is None else why("endpoint", reason)
    because = "" if known is None else known.words(request.locale.language).customer
    address, mark, _ = health.endpoint.url.partition("?")
    return request.text(words.ENDPOINT_STATES[health.state]), because, f"{address}?…" if mark else address
