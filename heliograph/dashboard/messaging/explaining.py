"""Sentences on a message's page, built from facts: how often messages end like it, and what it waited for."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.accounts import usage
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.campaigns import record
from heliograph.overview import figures, messages
from heliograph.overview.messages import Message
from heliograph.pages import words
from heliograph.pages.requests import Request
from heliograph.people.roles import USAGE

#: Seconds of waiting from which a sentence is shown.
LONG = 60
#: The final status of a message that the network did not report on.
SILENT = "unknown"
#: Last digits of a number that choose a test message's outcome.
DIGITS = 4


async def often(conn: Connection, request: Request, message: Message, near: Sequence[Message]) -> list[str]:
    """How often messages to its country and to its recipient end like this one. `near`: the latest to or from the
    recipient, including this one. Empty if it has not failed."""
    if message.direction != "outbound" or (message.failure_code is None and message.status != SILENT):
        return []
    text, number = request.text, request.locale.number
    found = []
    if message.country is not None:
        ended, accepted = await figures.count_reason(
            conn,
            request.actor,
            channel=message.channel,
            country=message.country,
            reason=None if message.status == SILENT else message.failure_code,
        )
        if 0 < ended <= accepted:
            found.append(
                text(
                    "Of messages to %(country)s, %(share)s %% ended this way in the last 7 days: %(count)s of %(all)s.",
                    country=text("numbers without a country")
                    if message.country == "001"
                    else request.locale.country(message.country),
                    share=number(100 * ended / accepted, 1),
                    count=number(ended),
                    all=number(accepted),
                )
            )
    to_them = [one for one in near if one.direction == "outbound"]
    alike = sum(one.status == message.status and one.failure_code == message.failure_code for one in to_them)
    if len(to_them) > 1:
        found.append(
            text(
                "Of the last %(all)s to this number, %(count)s ended this way.",
                all=number(len(to_them)),
                count=number(alike),
            )
        )
    return found


async def delayed(conn: Connection, request: Request, message: Message) -> str:
    """What a message waited for before it was handed over, if that took long; otherwise ""."""
    if message.sent_at is None or message.direction != "outbound":
        return ""
    seconds = (message.sent_at - (message.send_at or message.accepted_at)).total_seconds()
    if seconds < LONG:
        return ""
    text, waited = request.text, request.locale.duration(seconds)
    if message.quiet_until is not None and message.quiet_until <= message.sent_at:
        return text("%(time)s of it waiting: it was quiet where the recipient is.", time=waited)
    if message.campaign_id is not None:
        pace = await _pace(conn, request, message)
        if pace is not None:
            return text(
                "%(time)s of it waiting: the campaign sends %(pace)s a minute.",
                time=waited,
                pace=request.locale.number(pace),
            )
        return text("%(time)s of it waiting: single messages go before those of campaigns.", time=waited)
    return text("%(time)s of it waiting: others were before it, or the network did not take it at once.", time=waited)


async def charged(conn: Connection, request: Request, message: Message) -> str:
    """What a message cost. An SMS: a unit of the quota and any refund, with the balance before and after for readers
    who may see usage. Both channels: its price, if it has one, for the same readers."""
    if message.direction != "outbound":
        return ""
    if request.mode == "test":
        return _chosen(request, message)
    quota = await _quota(conn, request, message) if message.channel == "sms" else ""
    if not request.may(permission=USAGE):
        return quota
    price = (await messages.prices(conn, request.actor, listed=[message])).get(message.id)
    if price is None or not price.amount:
        return quota
    amount = request.locale.money(price.amount, price.currency)
    if price.is_due:
        said = request.text("Its price is %(amount)s.", amount=amount)
    else:
        said = request.text("Its price is %(amount)s, which is not charged yet.", amount=amount)
    return f"{quota} {said}".lstrip()


async def _quota(conn: Connection, request: Request, message: Message) -> str:
    text, number = request.text, request.locale.number
    paid = await usage.of_message(conn, request.actor, id=message.id)
    if paid is None:
        return ""
    if not request.may(permission=USAGE):
        said = text("It cost one message of the quota, however many segments it has.")
    else:
        before, after = number(paid.balance_after + 1), number(paid.balance_after)
        said = text(
            "It cost one message, however many segments it has: the quota went from %(before)s to %(after)s.",
            before=before,
            after=after,
        )
    if paid.refunded_at is None:
        return said
    return f"{said} {text('It was refunded on %(time)s.', time=request.locale.moment(paid.refunded_at))}"


def _chosen(request: Request, message: Message) -> str:
    """That a test message cost nothing, and which digits chose its outcome."""
    said = request.text("A test message: it reached nobody and cost nothing.")
    digits = message.recipient[-DIGITS:]
    outcomes = words.OUTCOMES if message.channel == "sms" else words.WHATSAPP_OUTCOMES
    if digits not in outcomes:
        return (
            f"{said} {request.text('The last four digits of its number choose no other outcome, so it is delivered.')}"
        )
    outcome = request.text(outcomes[digits])
    chose = request.text(
        "The last four digits of its number, %(digits)s, chose: %(outcome)s.", digits=digits, outcome=outcome
    )
    return f"{said} {chose}"


async def _pace(conn: Connection, request: Request, message: Message) -> int | None:
    if message.campaign_id is None or not request.may("campaigns:read"):
        return None
    try:
        campaign = await record.get(conn, request.actor, id=message.campaign_id, channel=message.channel)
    except NotFound:
        return None
    return campaign.messages_per_minute
