"""An organization's messages of both channels in one list, and a single one with its history.

Below API, pages and command line; above the channels, which do not know about each other. The rule nobody may break:
what is returned here is for customers, and a page of the list omits nothing between its first and last message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts import usage
from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan
from heliograph.base.database.bounded_scan import LOOK
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import time_of
from heliograph.base.process.settings import Settings
from heliograph.contacts import recency
from heliograph.overview.searching import finding
from heliograph.sending import listing
from heliograph.sending.listing import MessagePage
from heliograph.sms import messages as sms
from heliograph.sms.messages import Step
from heliograph.whatsapp import messages as whatsapp
from heliograph.whatsapp import rendering
from heliograph.why.words import Kind

CHANNELS = ("sms", "whatsapp")
DIRECTIONS = ("outbound", "inbound")
#: All public statuses, in the order of a message's lifecycle.
STATUSES = tuple(dict.fromkeys((*sms.SHOWN_STATUSES, *whatsapp.SHOWN_STATUSES)))
#: Other messages to the same person shown with one, and how many are scanned to find them.
NEIGHBOURS, NEAR = 5, 5_000
#: Final statuses.
FINAL = frozenset({"undelivered", "failed", "expired", "rejected", "canceled", "unknown", "read", "received"})


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of either channel."""

    id: UUID
    channel: str
    mode: str = "live"
    #: "outbound" or "inbound"; received SMS are not included.
    direction: str = "outbound"
    status: str
    recipient: str
    #: SMS: the sender's value; WhatsApp: None.
    sender: str | None = None
    #: WhatsApp: the organization's number.
    number_id: UUID | None = None
    #: WhatsApp: name of the template, if it is one.
    template: str | None = None
    client_reference: str | None
    campaign_id: UUID | None = None
    #: Key of the request that sent it; None: a campaign, a person or the command line did.
    key_id: UUID | None = None
    #: Who sent it on the dashboard.
    person_id: UUID | None = None
    request_id: str = ""
    #: ISO region of the number; not kept for received messages.
    country: str | None = None
    encoding: str | None = None
    segments: int | None = None
    accepted_at: datetime
    send_at: datetime | None = None
    expires_at: datetime | None = None
    #: SMS: until when it waits, or waited, for the end of the recipient's quiet hours.
    quiet_until: datetime | None = None
    sent_at: datetime | None
    delivered_at: datetime | None
    read_at: datetime | None = None
    failed_at: datetime | None
    #: WhatsApp: when it was canceled.
    canceled_at: datetime | None = None
    failure_code: str | None
    #: WhatsApp: its content, if that is text; of a template, the values only.
    said: str | None = None
    #: SMS: the send named no sender, so the organization's default was used.
    is_default_sender: bool = False
    #: SMS: one of `TRAFFIC_CLASSES`, and whether it is sent again if a supplier's answer is lost.
    traffic_class: str = ""
    guarantee: str = ""

    @property
    def failure_kind(self) -> Kind:
        """The kind under which `why` explains its failure."""
        return "sms_failure" if self.channel == "sms" else "whatsapp_failure"

    @property
    def shown_status(self) -> str:
        """The status for people. The API and files call a received message delivered."""
        return self.status if self.direction == "outbound" else "received"

    @property
    def is_final(self) -> bool:
        """True if its status will not change. For WhatsApp, a delivered message may still be read."""
        return self.shown_status in FINAL or (self.channel == "sms" and self.status == "delivered")


class Filters(listing.Filters, frozen=True, kw_only=True):
    """Which messages are wanted; None matches all."""

    channel: str | None = None
    #: SMS only: the sender's value.
    sender: str | None = None
    #: WhatsApp only: the template's name, and the category that it is charged as.
    template: str | None = None
    category: str | None = None
    #: One of DIRECTIONS; "inbound" matches no SMS, since received ones are not included.
    direction: str | None = None


class Price(msgspec.Struct, frozen=True):
    """The price of a message, in millionths."""

    amount: int
    currency: str
    #: True: it has been charged; False: it will be, if the message gets that far.
    is_due: bool


class MessageDetail(msgspec.Struct, frozen=True):
    """A message, its text (None: deleted, or not kept by its channel), and its history, in order."""

    message: Message
    text: str | None
    steps: list[Step]
    #: The events that it raised.
    events: list[UUID] = []
    #: Reports from networks, and the recording of events: for people only, in no particular order.
    behind: list[Step] = []
    #: Of a WhatsApp template, the values that are not in its text: (header or button, value).
    values: list[tuple[str, str]] = []
    #: A WhatsApp template that was edited after it was sent: the text is the edited one.
    is_outdated: bool = False
    #: What a WhatsApp message is, as `rendering.content_type` names it; None: it was erased, or is an SMS.
    content: str | None = None


async def list_page(
    conn: Connection, actor: Actor, *, filters: Filters, after: UUID | None = None, limit: int = 50, look: int = LOOK
) -> MessagePage[Message]:
    """Messages older than `after`, newest first: up to `limit` + 1, so that the caller knows whether there are more.

    Each channel scans at most `look` messages. If one stops before finding enough, nothing older than where it stopped
    is returned, since messages of its own could lie in between; `seen` is that place.
    """
    shared: dict[str, Any] = {name: getattr(filters, name) for name in listing.Filters.__struct_fields__}
    pages: list[tuple[list[Message], UUID | None]] = []
    # An SMS has no template.
    if (
        filters.channel in (None, "sms")
        and _fits(filters.statuses, sms.SHOWN_STATUSES)
        and filters.template is None
        and filters.category is None
        and filters.direction != "inbound"
    ):
        listed = await sms.list_page(
            conn,
            actor,
            filters=sms.Filters(**shared, sender=filters.sender),
            after=after,
            limit=limit,
            look=look,
        )
        pages.append(([_of_sms(one) for one in listed.messages], listed.seen))
    # A WhatsApp number is not an SMS sender.
    if (
        filters.channel in (None, "whatsapp")
        and _fits(filters.statuses, whatsapp.SHOWN_STATUSES)
        and filters.sender is None
    ):
        found = await whatsapp.list_page(
            conn,
            actor,
            filters=whatsapp.Filters(
                **shared,
                template_name=filters.template,
                billing_category=filters.category,
                # A status is that of a sent message.
                direction=filters.direction or ("outbound" if filters.statuses is not None else None),
            ),
            after=after,
            limit=limit,
            look=look,
        )
        pages.append(([_of_whatsapp(one) for one in found.messages], found.seen))
    return MessagePage(*bounded_scan.merged(pages, limit=limit))


def _fits(wanted: Sequence[str] | None, shown: Sequence[str]) -> bool:
    """True if messages of a channel that has these statuses can be among the wanted ones."""
    return wanted is None or not set(wanted).isdisjoint(shown)


async def near(conn: Connection, actor: Actor, *, recipient: str) -> list[Message]:
    """The latest messages to or from somebody: enough for NEIGHBOURS in addition to any one of them."""
    found = await list_page(conn, actor, filters=Filters(recipient=recipient), limit=NEIGHBOURS + 1, look=NEAR)
    return found.messages


def others(near: Sequence[Message], id: UUID) -> list[Message]:
    """Those of `near` that are shown with one."""
    return [one for one in near if one.id != id][:NEIGHBOURS]


def took(*, accepted_at: datetime, send_at: datetime | None, delivered_at: datetime | None) -> float | None:
    """Seconds from when a message could be sent until it arrived; None: it has not."""
    if delivered_at is None:
        return None
    return max((delivered_at - (send_at or accepted_at)).total_seconds(), 0.0)


def unknown_at(settings: Settings, *, status: str, sent_at: datetime | None) -> datetime | None:
    """When an SMS without a report counts as unknown; None: it is not with the network. It is not given up before."""
    if status != "sent" or sent_at is None:
        return None
    return sent_at + timedelta(hours=settings.receipt_deadline_hours)


async def by_ids(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> list[Message]:
    """The messages with these ids, of either channel, newest first; missing ones are omitted."""
    found = [_of_sms(one) for one in await sms.by_ids(conn, actor, ids=ids)]
    found += [_of_whatsapp(one) for one in await whatsapp.by_ids(conn, actor, ids=ids)]
    return sorted(found, key=lambda one: one.id, reverse=True)


async def of_request(conn: Connection, actor: Actor, *, request_id: str) -> Message | None:
    """The latest message created by a request with this `x-request-id`: searched around the time contained in the id,
    as in ids generated by the API, or else among the latest of each channel."""
    made_at, ids = finding.made_at(request_id), list[UUID]()
    if made_at is not None:
        since, until = made_at - finding.EARLIER, made_at + finding.ACCEPTED
        ids = await listing.of_request(conn, actor, request_id=request_id, date_from=since, date_to=until, look=LOOK)
    # A client may have chosen an id whose time is not that of its request.
    found = await by_ids(conn, actor, ids=ids or await listing.of_request(conn, actor, request_id=request_id))
    return found[0] if found else None


async def prices(conn: Connection, actor: Actor, *, listed: Sequence[Message]) -> dict[UUID, Price]:
    """Prices of these messages; free ones are omitted, as are those that ended before their price was due, and those
    that were refunded: what was due is not charged."""
    found = {}
    charges = await sms.prices(conn, actor, ids=[one.id for one in listed if one.channel == "sms"])
    refunded = await usage.refunded(conn, actor, ids=list(charges))
    for one in listed:
        if (charge := charges.get(one.id)) is None:
            continue
        arrived = one.delivered_at is not None
        if one.id in refunded and not (arrived and (charge.due == "delivered" or one.sent_at == one.delivered_at)):
            continue  # due after its refund: only on delivery, or only then known to have been sent
        is_due = arrived or (charge.due == "submit" and one.sent_at is not None)
        if is_due or not one.is_final:
            found[one.id] = Price(charge.amount, charge.currency, is_due)
    booked = await whatsapp.prices(conn, actor, ids=[one.id for one in listed if one.channel == "whatsapp"])
    return found | {id: Price(*price) for id, price in booked.items()}


NUMBERS = "SELECT id, display_phone_number FROM whatsapp_numbers WHERE organization_id = $1 AND id = ANY ($2::uuid[])"


async def numbers(conn: Connection, actor: Actor, *, listed: Sequence[Message]) -> dict[UUID, str]:
    """How the organization's WhatsApp numbers of these messages are written, by id."""
    ids = list({one.number_id for one in listed if one.number_id is not None})
    return {row[0]: row[1] for row in await conn.fetch(NUMBERS, actor.organization_id, ids)} if ids else {}


async def last_to(conn: Connection, actor: Actor, *, contacts: Collection[UUID]) -> dict[UUID, Message]:
    """The message last sent to each of these contacts, as far as `contacts.recency` has read; contacts to whom none was
    sent, or whose last one has been deleted, are omitted."""
    last = await recency.last(conn, actor, ids=contacts)
    found = {one.id: one for one in await by_ids(conn, actor, ids=last.values())}
    return {contact: found[id] for contact, id in last.items() if id in found}


async def get(conn: Connection, actor: Actor, *, id: UUID) -> MessageDetail:
    """A message of either channel. Raises NotFound."""
    try:
        detail = await sms.get(conn, actor, id=id)
    except NotFound:
        found = await whatsapp.get(conn, actor, id=id)
        message = _of_whatsapp(found)
        said = (await rendering.rendered(conn, actor, messages=[found]))[found.id]
        raised, tried = await whatsapp.deliveries(conn, actor, id=id)
        kinds = {one["id"]: one["kind"] for one in raised}
        steps = [*_steps(message), *(sms.delivery(one, kinds[one["event_id"]]) for one in tried)]
        behind = [sms.recorded(one) for one in raised]
        if message.direction == "inbound":
            # Its event has the time at which its callback arrived. It is recorded with the message, however much later.
            behind = [
                msgspec.structs.replace(step, at=time_of(one["id"])) for step, one in zip(behind, raised, strict=True)
            ]
        steps.sort(key=lambda step: step.at)
        content = None if found.content is None else rendering.content_type(found, said.text)
        text = said.text or None
        return MessageDetail(message, text, steps, list(kinds), behind, said.outside, said.is_outdated, content)
    return MessageDetail(_of_sms(detail.message), detail.text, detail.steps, detail.events, detail.behind)


async def reveal(conn: Connection, actor: Actor, *, id: UUID) -> MessageDetail:
    """Like `get`, for somebody who may see numbers and texts only one at a time: recorded in the audit log."""
    async with conn.transaction():
        detail = await get(conn, actor, id=id)
        await audit.record(conn, actor, "message.revealed", object_id=id)
    return detail


def _of_sms(one: sms.Message) -> Message:
    return Message(
        id=one.id,
        channel="sms",
        mode=one.mode,
        status=one.status,
        recipient=one.recipient,
        sender=one.sender,
        client_reference=one.client_reference,
        campaign_id=one.campaign_id,
        key_id=one.key_id,
        person_id=one.person_id,
        request_id=one.request_id,
        country=one.country,
        encoding=one.encoding,
        segments=one.segments,
        accepted_at=one.accepted_at,
        send_at=one.send_at,
        expires_at=one.expires_at,
        quiet_until=one.quiet_until,
        sent_at=one.sent_at,
        delivered_at=one.delivered_at,
        failed_at=one.failed_at,
        failure_code=one.failure_code,
        is_default_sender=bool(one.sender_defaulted),
        traffic_class=one.traffic_class,
        guarantee=one.guarantee,
    )


def _of_whatsapp(one: whatsapp.Message) -> Message:
    return Message(
        id=one.id,
        channel="whatsapp",
        mode=one.mode,
        direction=one.direction,
        status=one.status,
        recipient=one.recipient,
        number_id=one.number_id,
        template=one.template_name,
        client_reference=one.client_reference,
        campaign_id=one.campaign_id,
        key_id=one.key_id,
        person_id=one.person_id,
        request_id=one.request_id,
        country=one.country,
        accepted_at=one.accepted_at,
        sent_at=one.sent_at,
        delivered_at=one.delivered_at,
        read_at=one.read_at,
        failed_at=one.failed_at,
        canceled_at=one.canceled_at,
        failure_code=one.failure_code,
        said=_said(one),
    )


def _said(one: whatsapp.Message) -> str | None:
    """A message's content as text: what its user wrote, its text, or the values of its template."""
    content = one.content or {}
    if one.direction == "inbound":
        return rendering.plain_text(content) or None
    if isinstance(body := content.get("body") or content.get("text"), str):
        return body
    values = content.get("parameters")
    if isinstance(values, dict):
        values = list(values.values())
    return ", ".join(str(value) for value in values) if isinstance(values, list) else None


def _steps(message: Message) -> Iterable[Step]:
    yield Step(message.accepted_at, "received" if message.direction == "inbound" else "accepted")
    for at, status in (
        (message.sent_at, "sent"),
        (message.delivered_at, "delivered"),
        (message.read_at, "read"),
        (message.failed_at, "failed"),
        (message.canceled_at, "canceled"),
    ):
        if at is not None and message.direction == "outbound":
            yield Step(at, status, message.failure_code if status == "failed" else None)
