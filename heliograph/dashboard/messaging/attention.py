"""What needs attention, on the front page: at most five items, each with one button."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from heliograph.accounts import spending
from heliograph.accounts.api_keys import issued
from heliograph.accounts.quota import Quota
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.campaigns import record
from heliograph.campaigns.approval import rule
from heliograph.campaigns.record import Campaign
from heliograph.guard import holds
from heliograph.overview import figures, usage
from heliograph.pages import words
from heliograph.pages.requests import Request
from heliograph.people import memberships
from heliograph.people.roles import SETTINGS, TEAM, USAGE
from heliograph.sms.accepting import sender_ids
from heliograph.traffic import LOST
from heliograph.webhooks import endpoints
from heliograph.webhooks import figures as webhook_figures
from heliograph.webhooks.endpoints import Endpoint
from heliograph.webhooks.figures import Waiting
from heliograph.webhooks.replays import REPLAY_DAYS
from heliograph.whatsapp import number_states
from heliograph.whatsapp.mirror import qualities
from heliograph.whatsapp.mirror.numbers import FALLEN
from heliograph.why.words import why

#: Items shown.
MOST = 5
#: Remaining quota, in percent, below which a notice is shown.
LOW = 20
#: Events older than this are not news; a key that ends within this time is.
LATELY = SOON = timedelta(days=7)
#: Maximum number of running or paused campaigns per channel.
LATEST = 20


class Notice(msgspec.Struct, frozen=True):
    """One item. `link` and `label`: its button."""

    text: str
    link: str
    label: str


async def campaigns(conn: Connection, request: Request) -> list[Campaign]:
    """Running and paused campaigns, newest first."""
    if not request.may("campaigns:read"):
        return []
    listed: list[Campaign] = []
    for channel in ("sms", "whatsapp"):
        listed += await record.under_way(conn, request.actor, channel=channel, limit=LATEST)
    return sorted(listed, key=lambda one: one.id, reverse=True)


async def notices(
    conn: Connection, request: Request, *, balance: Quota | None, running: Sequence[Campaign], has_checklist: bool
) -> list[Notice]:
    """What needs attention, most urgent first. `has_checklist`: the checklist, which includes the second factor, is
    shown next to it."""
    found = await _of_quota(conn, request, balance)
    found += [_of_campaign(request, one) for one in running if one.status == "paused"]
    for part in (_of_held, _of_endpoints, _of_countries, _of_senders, _of_numbers, _of_keys):
        if len(found) < MOST:
            found += await part(conn, request)
    if len(found) < MOST:
        found += await _of_factors(conn, request, has_checklist=has_checklist)
    return found[:MOST]


async def _of_quota(conn: Connection, request: Request, balance: Quota | None) -> list[Notice]:
    text, number = request.text, request.locale.number
    if balance is None:
        return []
    link = request.to("/usage") if request.may(permission=USAGE) else ""
    if balance.total <= 0:
        # Without a sender ID, as where only WhatsApp is used, none is needed.
        has_sender = await sender_ids.any_approved(conn, request.acting("live"))
        return [Notice(text(words.NO_QUOTA), link, text("Usage"))] if has_sender else []
    pace = await usage.pace(conn, request.acting("live"), balance)
    gone = pace.gone_at if pace.gone_at is not None and pace.gone_at < clock.now() + SOON else None
    if balance.remaining <= 0:
        said = text("The quota is used up: nothing more is accepted.")
    elif gone is not None:
        said = text(
            "At the pace of the last week the quota is used up on %(day)s: %(left)s messages are left.",
            day=request.locale.day(gone),
            left=number(balance.remaining),
        )
    elif 100 * balance.remaining < LOW * balance.total:
        said = text("Less than a fifth of the quota is left: %(left)s messages.", left=number(balance.remaining))
    else:
        return []
    return [Notice(said, link, text("Usage"))]


def _of_campaign(request: Request, one: Campaign) -> Notice:
    if one.status_reason == rule.REASON:
        said = request.text("The campaign “%(name)s” waits for a second person's approval.", name=one.name)
    else:
        known = why("campaign", one.status_reason or "")
        reason = "" if known is None else known.words(request.locale.language).customer
        said = request.text("The campaign “%(name)s” is stalled. %(reason)s", name=one.name, reason=reason).strip()
    return Notice(said, request.to(f"/campaigns/{one.id}"), request.text("Campaign"))


async def _of_held(conn: Connection, request: Request) -> list[Notice]:
    """Messages waiting for the operator, who alone can release them; an exhausted daily limit."""
    text, number = request.text, request.locale.number
    if request.mode != "live" or not request.may("sms:read"):
        return []
    link = "/settings/limits" if request.may(permission=SETTINGS) else ""
    organization_id = request.actor.organization_id
    found = []
    if count := await holds.held(conn, organization_id):
        some = number(count) + ("+" if count >= holds.MANY else "")
        said = text("Messages that wait because unusually many go to numbers like theirs: %(count)s.", count=some)
        found.append(Notice(said, link, text("View")))
    if (await spending.remaining(conn, organization_id)).get("organization", 1) == 0:
        found.append(Notice(text("The daily limit of segments is used up until midnight UTC."), link, text("View")))
    return found


async def _of_endpoints(conn: Connection, request: Request) -> list[Notice]:
    if not request.may("webhooks:read"):
        return []
    text, found = request.text, []
    listed = await endpoints.list_all(conn, request.actor)
    failing = [one.id for one in listed if one.is_failing]
    waiting = await webhook_figures.waiting(conn, request.actor, ids=failing) if failing else {}
    for one in listed:
        link = request.to(f"/webhooks/{one.id}")
        if one.id in waiting:
            found.append(Notice(_of_failing(request, one, waiting[one.id]), link, text("View")))
            continue
        if one.status == "active":
            continue
        if one.paused_at is not None:
            said = text(
                "Webhooks to %(url)s have been paused since %(since)s; new events wait, for %(days)s days at most.",
                url=one.url,
                since=request.locale.moment(one.paused_at),
                days=REPLAY_DAYS,
            )
        elif one.disabled_reason not in (None, endpoints.REQUESTED) and _is_late(one.disabled_at):
            known = why("endpoint", one.disabled_reason or "")
            said = one.url + ": " + ("" if known is None else known.words(request.locale.language).customer)
        else:
            continue
        found.append(Notice(said, link, text("View")))
    return found


def _of_failing(request: Request, one: Endpoint, waiting: Waiting) -> str:
    text, locale = request.text, request.locale
    since = "–" if waiting.failing_since is None else locale.moment(waiting.failing_since)
    if waiting.count > webhook_figures.MOST_WAITING:
        most = locale.number(webhook_figures.MOST_WAITING)
        return text(
            "Webhooks to %(url)s have failed since %(since)s; more than %(count)s events wait.",
            url=one.url,
            since=since,
            count=most,
        )
    return text(
        "Webhooks to %(url)s have failed since %(since)s; events that wait: %(count)s.",
        url=one.url,
        since=since,
        count=locale.number(waiting.count),
    )


def _is_late(at: datetime | None) -> bool:
    """Whether it happened recently."""
    return at is not None and at > clock.now() - LATELY


async def _of_countries(conn: Connection, request: Request) -> list[Notice]:
    """Countries whose delivery rate fell below their own of the week before. Test messages say nothing about this."""
    if request.mode != "live" or not request.may("sms:read"):
        return []
    locale = request.locale
    return [
        Notice(
            request.text(
                "%(country)s: %(now)s %% of the messages of the last 24 hours arrived; the week before, %(before)s %%.",
                country=locale.country(one.region),
                now=locale.number(one.now.rate or 0, 1),
                before=locale.number(one.before.rate or 0, 1),
            ),
            request.to("/messages", country=one.region, range="24h", status=",".join(LOST)),
            request.text("Messages"),
        )
        for one in await figures.delivery_drops(conn, request.actor)
    ]


async def _of_numbers(conn: Connection, request: Request) -> list[Notice]:
    """WhatsApp numbers whose quality fell recently."""
    if request.mode != "live" or not request.may("whatsapp:read"):
        return []
    low = [
        one.number for one in await number_states.list_all(conn, request.actor) if one.number.quality_rating in FALLEN
    ]
    trends = await qualities.trends(conn, request.actor, ids=[one.id for one in low])
    return [
        Notice(
            request.text(
                "The quality of the WhatsApp number %(number)s is %(quality)s.",
                number=one.display_phone_number,
                quality=request.text(words.QUALITIES[one.quality_rating]),
            ),
            "/numbers",
            request.text("View"),
        )
        for one in low
        if one.id in trends and _is_late(trends[one.id][0].at)
    ]


async def _of_senders(conn: Connection, request: Request) -> list[Notice]:
    if not request.may("sender_ids:read"):
        return []
    return [
        Notice(
            request.text("The sender ID “%(value)s” was rejected.", value=one.value)
            + (f" {one.rejection_reason}" if one.rejection_reason else ""),
            request.to("/senders"),
            request.text("Sender IDs"),
        )
        for one in await sender_ids.list_all(conn, request.acting("live"))
        if one.status == "rejected" and _is_late(one.reviewed_at)
    ]


async def _of_keys(conn: Connection, request: Request) -> list[Notice]:
    if not request.may("api_keys:read"):
        return []
    return [
        Notice(
            request.text(
                "The key “%(name)s” expires %(when)s.", name=one.name, when=request.locale.ago(one.expires_at)
            ),
            request.to("/keys"),
            request.text("API keys"),
        )
        for one in await issued.standing(conn, request.actor)
        if one.status == "active" and one.expires_at is not None and one.expires_at < clock.now() + SOON
    ]


async def _of_factors(conn: Connection, request: Request, *, has_checklist: bool) -> list[Notice]:
    if not request.may(permission=TEAM):
        return []
    actor = request.acting("live")
    # A new organization of one person has it on the checklist.
    if (has_checklist and not await memberships.has_colleagues(conn, actor)) or await memberships.has_factor(
        conn, actor
    ):
        return []
    return [
        Notice(
            request.text("Nobody here has a second factor: a stolen password is enough to sign in."),
            # An operator who views would come to the page of their own.
            "/account/factor" if request.person.reason is None else "",
            request.text("Turn on"),
        )
    ]
