"""The messages of an organization, of both channels in one list, and one of them with what happened to it.

Below API, pages and command line; above the channels, which know nothing of each other. The rule nobody may break: what
is returned here is for customers, and a page of the list omits nothing between its first and last message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan
from heliograph.base.database.bounded_scan import LOOK
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.sms import messages as sms
from heliograph.sms.messages import Step
from heliograph.whatsapp import messages as whatsapp
from heliograph.why.words import Kind

CHANNELS = ("sms", "whatsapp")
#: All public statuses, in the order of a message's life.
STATUSES = tuple(dict.fromkeys((*sms.SHOWN_STATUSES, *whatsapp.SHOWN_STATUSES)))
#: Final statuses.
FINAL = frozenset({"undelivered", "failed", "expired", "rejected", "canceled", "unknown", "read", "received"})


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of either channel."""

    id: UUID
    channel: str
    #: WhatsApp messages are listed of the actor's mode alone, and do not say it.
    mode: str = "live"
    #: "outbound" or "inbound"; received SMS are not included.
    direction: str = "outbound"
    status: str
    recipient: str
    #: SMS: the sender's value; WhatsApp: None.
    sender: str | None = None
    #: WhatsApp: of the template, if it is one.
    template: str | None = None
    client_reference: str | None
    campaign_id: UUID | None = None
    #: Of the request that sent it; None: a campaign, a person or the command line did.
    key_id: UUID | None = None
    #: Who sent it on the dashboard.
    person_id: UUID | None = None
    request_id: str = ""
    #: ISO region of the number; of what was received it is not kept.
    country: str | None = None
    encoding: str | None = None
    segments: int | None = None
    accepted_at: datetime
    send_at: datetime | None = None
    expires_at: datetime | None = None
    #: SMS: until when it waits, or waited, because it was quiet where its recipient is.
    quiet_until: datetime | None = None
    sent_at: datetime | None
    delivered_at: datetime | None
    read_at: datetime | None = None
    failed_at: datetime | None
    failure_code: str | None
    #: WhatsApp: what it says, where that is text.
    said: str | None = None

    @property
    def failure_kind(self) -> Kind:
        """The kind of its failure in the table of words."""
        return "sms_failure" if self.channel == "sms" else "whatsapp_failure"

    @property
    def is_final(self) -> bool:
        """Nothing more will come. For WhatsApp, a delivered message may still be read."""
        return self.status in FINAL or (self.channel == "sms" and self.status == "delivered")


class Filters(msgspec.Struct, frozen=True):
    """Which messages are wanted; None: all."""

    channel: str | None = None
    #: Any of these.
    statuses: Sequence[str] | None = None
    #: E.164 with `+`.
    recipient: str | None = None
    client_reference: str | None = None
    campaign_id: UUID | None = None
    #: An SMS's, by its value.
    sender: str | None = None
    country: str | None = None
    failure_code: str | None = None
    key_id: UUID | None = None
    #: Who sent it on the dashboard.
    person_id: UUID | None = None
    request_id: str | None = None
    #: Only those that a request of its own sent with a key.
    is_requested: bool = False
    date_from: datetime | None = None
    date_to: datetime | None = None


class Found(msgspec.Struct, frozen=True):
    """Up to `limit` + 1 messages, newest first. `seen`: the id at which the scan ended before it had found that
    many."""

    messages: list[Message]
    seen: UUID | None


class MessageDetail(msgspec.Struct, frozen=True):
    """A message, what it says (None: it is forgotten, or a channel's that keeps none), and what happened, in order."""

    message: Message
    text: str | None
    steps: list[Step]
    #: The events that it raised.
    events: list[UUID] = []


async def list_page(
    conn: Connection, actor: Actor, *, filters: Filters, after: UUID | None = None, limit: int = 50, look: int = LOOK
) -> Found:
    """Messages older than `after`, newest first: up to `limit` + 1, so that the caller knows whether there are more.

    Each channel scans at most `look` messages. If one stopped before it had found enough, nothing older than where it
    stopped is shown, since some of its messages could lie in between; `seen` is that place.
    """
    pages: list[tuple[list[Message], UUID | None]] = []
    if filters.channel in (None, "sms") and _fits(filters.statuses, sms.SHOWN_STATUSES):
        listed = await sms.list_page(
            conn,
            actor,
            filters=sms.Filters(
                statuses=filters.statuses,
                recipient=filters.recipient,
                client_reference=filters.client_reference,
                campaign_id=filters.campaign_id,
                sender=filters.sender,
                country=filters.country,
                failure_code=filters.failure_code,
                key_id=filters.key_id,
                person_id=filters.person_id,
                request_id=filters.request_id,
                is_requested=filters.is_requested,
                date_from=filters.date_from,
                date_to=filters.date_to,
            ),
            after=after,
            limit=limit,
            look=look,
        )
        pages.append(([_of_sms(one) for one in listed.messages], listed.seen))
    # A number of WhatsApp is no sender of SMS.
    if (
        filters.channel in (None, "whatsapp")
        and _fits(filters.statuses, whatsapp.SHOWN_STATUSES)
        and filters.sender is None
    ):
        found = await whatsapp.list_page(
            conn,
            actor,
            filters=whatsapp.Filters(
                statuses=filters.statuses,
                recipient=filters.recipient,
                client_reference=filters.client_reference,
                campaign_id=filters.campaign_id,
                country=filters.country,
                failure_code=filters.failure_code,
                key_id=filters.key_id,
                person_id=filters.person_id,
                request_id=filters.request_id,
                is_requested=filters.is_requested,
                date_from=filters.date_from,
                date_to=filters.date_to,
            ),
            after=after,
            limit=limit,
            look=look,
        )
        pages.append(([_of_whatsapp(one) for one in found.messages], found.seen))
    return Found(*bounded_scan.merged(pages, limit=limit))


def _fits(wanted: Sequence[str] | None, shown: Sequence[str]) -> bool:
    """Whether messages of a channel that has these statuses can be among those that are wanted."""
    return wanted is None or not set(wanted).isdisjoint(shown)


async def by_ids(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> list[Message]:
    """Those of the messages, of either channel, that are there, newest first."""
    found = [_of_sms(one) for one in await sms.by_ids(conn, actor, ids=ids)]
    found += [_of_whatsapp(one) for one in await whatsapp.by_ids(conn, actor, ids=ids)]
    return sorted(found, key=lambda one: one.id, reverse=True)


async def get(conn: Connection, actor: Actor, *, id: UUID) -> MessageDetail:
    """A message of either channel. Raises NotFound."""
    try:
        detail = await sms.get(conn, actor, id=id)
    except NotFound:
        message = _of_whatsapp(await whatsapp.get(conn, actor, id=id))
        kinds, tried = await whatsapp.deliveries(conn, actor, id=id)
        steps = [*_steps(message), *(sms.delivery(one, kinds[one["event_id"]]) for one in tried)]
        return MessageDetail(message, message.said, sorted(steps, key=lambda step: step.at), list(kinds))
    return MessageDetail(_of_sms(detail.message), detail.text, detail.steps, detail.events)


async def reveal(conn: Connection, actor: Actor, *, id: UUID) -> MessageDetail:
    """Like `get`, for somebody who sees numbers and texts only one at a time: it is recorded in the audit log."""
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
    )


def _of_whatsapp(one: whatsapp.Message) -> Message:
    return Message(
        id=one.id,
        channel="whatsapp",
        direction=one.direction,
        status=one.status,
        recipient=one.recipient,
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
        failure_code=one.failure_code,
        said=_said(one),
    )


def _said(one: whatsapp.Message) -> str | None:
    """What a message says in words: its text, or the values of its template."""
    content = one.content or {}
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
    ):
        if at is not None and message.direction == "outbound":
            yield Step(at, status, message.failure_code if status == "failed" else None)
