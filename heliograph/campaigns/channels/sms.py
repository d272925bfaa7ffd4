"""SMS campaigns: a text with placeholders, from a sender ID, paid from the quota.

The rule nobody may break: the sender must be approved when a chunk is staged, not only when the campaign was created.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from heliograph.accounts import spending
from heliograph.accounts.organizations import DestinationNotAllowed
from heliograph.base.actor import Actor
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound, Problems, Refusal, Unavailable
from heliograph.base.money import Charge
from heliograph.campaigns import plan, template
from heliograph.campaigns.audience import Recipient
from heliograph.campaigns.channels.contract import DueCampaign, StagedMessage, StagingStop
from heliograph.campaigns.record import TABLE, Campaign
from heliograph.classes import kinds
from heliograph.queue.holds import AlreadyAttempted
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import Item, Sealing
from heliograph.sending.attempts import MAY_HAVE_ARRIVED
from heliograph.sms.accepting import bulk, sender_choice, withdrawal
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.accepting.bulk import Bulk
from heliograph.sms.accepting.routing_cache import RoutingCache
from heliograph.sms.accepting.withdrawal import Unsent
from heliograph.sms.charges import Charges

#: The class of a campaign for which none is given.
USUAL_CLASS = "marketing"


class SmsCampaignSpec(plan.CampaignSpec, frozen=True, kw_only=True):
    """An SMS campaign to be created."""

    message_template: str
    sender_id: UUID | None = None
    sender_name: str | None = None
    #: One of `TRAFFIC_CLASSES`.
    traffic_class: str = USUAL_CLASS


SMART = "SELECT smart_encoding AS smart, replace_accents AS accents FROM organizations WHERE id = $1"


async def create(conn: Connection, actor: Actor, *, spec: SmsCampaignSpec, request_id: str) -> Campaign:
    """Create a campaign; a worker starts it within a second of its time. Runs in the caller's transaction.

    Raises Invalid (text, time, tags, recipients, an unknown sender), SenderIdNotApproved, and CampaignAudienceEmpty
    for one that starts at once without recipients.
    """
    chosen = await conn.fetchrow(SMART, actor.organization_id)
    if chosen is None:
        raise NotFound(resource="organization", id=str(actor.organization_id))
    wrong = Problems()
    with wrong.gathering():
        template.check(spec.message_template, "message_template", **chosen)
    with wrong.gathering():
        checked = await plan.check_spec(conn, spec)
    wrong.report()
    sender = await sender_choice.resolve(
        conn, actor, sender_id=spec.sender_id, sender_name=spec.sender_name, fields=sender_choice.SNAKE
    )
    return await plan.begin(
        conn,
        actor,
        checked=checked,
        channel=SmsChannel.name,
        content={"message_template": spec.message_template, "sender_id": sender.id, "class": spec.traffic_class},
        with_names=bool(template.places(spec.message_template) - {"phone"}),
        request_id=request_id,
    )


#: Whether a message with this many segments may go to a number (E.164).
IsReachable = Callable[[str, int], bool]


async def reachability(conn: Connection, actor: Actor, acceptor: Acceptor, *, spec: SmsCampaignSpec) -> IsReachable:
    """Whom the campaign would reach if it started now: live messages go only to destinations that are in the
    organization's price list and to which a supplier carries their sender. An unusable sender does not count against
    recipients."""
    if actor.mode != "live":
        return lambda phone, segments: True
    try:
        sender = await sender_choice.resolve(conn, actor, sender_id=spec.sender_id, sender_name=spec.sender_name)
    except Refusal:
        return lambda phone, segments: True
    charges, routing_cache = await acceptor.charges.get(conn), await acceptor.routing.get(conn)
    at = now()

    def reached(phone: str, segments: int) -> bool:
        refusal = routing_cache.refusal(
            phone,
            organization_id=actor.organization_id,
            sender_id=sender.id,
            sender=sender.value,
            traffic_class=spec.traffic_class,
        )
        if refusal is not None:
            return False
        try:
            charges.price(actor.organization_id, phone, sender.value, segments, at, spec.traffic_class)
        except DestinationNotAllowed:
            return False
        return True

    return reached


class Text(StagedMessage, frozen=True, gc=False):
    """One recipient's text."""

    text: str
    encoding: str
    segments: int
    #: The organization's price for it; None: there is no price.
    price: Charge | None = None


OPEN = f"""
SELECT c.message_template, coalesce(c.class, '{USUAL_CLASS}'), c.sender_id, s.value, s.status, q.total - q.used,
       l.room, o.validity_seconds
  FROM campaigns c JOIN sender_ids s ON s.organization_id = c.organization_id AND s.id = c.sender_id
       JOIN quotas q ON q.organization_id = c.organization_id
       JOIN organizations o ON o.id = c.organization_id
       CROSS JOIN LATERAL (
       SELECT min(segments - {spending.USED.format(of="")}) AS room FROM spend_limits
        WHERE organization_id = c.organization_id
          AND key_id IN ('{spending.WHOLE}', CASE c.author_kind WHEN 'key' THEN c.author_id END)) l
 WHERE c.organization_id = $1 AND c.id = $2
"""
UNSENT = """
SELECT id, segments FROM messages
 WHERE organization_id = $1 AND id BETWEEN $2 AND $3 AND campaign_id = $4 AND status = 'accepted'
"""


class SmsChannel:
    """Campaigns by SMS. Implements `contract.Channel`."""

    name = "sms"
    #: Some 40 ms, for a quarter of which the organization's balance is locked.
    most = 1_000
    counted = f"""
SELECT count(*) FILTER (WHERE status = 'accepted') AS queued_now,
       count(*) FILTER (WHERE status = 'sent') AS sent_now,
       count(*) FILTER (WHERE status = 'delivered') AS delivered_now,
       0::bigint AS read_now,
       count(*) FILTER (WHERE status IN ('undelivered', 'failed', 'expired', 'rejected')) AS failed_now,
       -- A supplier may have part of a message, or an attempt may have arrived. Both are checked last, and so only for
       -- the few messages that meet the other conditions.
       count(*) FILTER (WHERE status IN ('undelivered', 'failed', 'expired', 'rejected') AND sent_at IS NULL
                          AND (SELECT a.attempt FROM attempts a
                                WHERE a.organization_id = m.organization_id AND a.message_id = m.id
                                  AND a.state IN {MAY_HAVE_ARRIVED} LIMIT 1) IS NULL
                          AND (SELECT part FROM sms_parts WHERE message_id = m.id LIMIT 1) IS NULL)
           AS never_sent_now,
       count(*) FILTER (WHERE status = 'unknown') AS unknown_now,
       count(*) FILTER (WHERE status = 'canceled') AS canceled_now,
       count(*) FILTER (WHERE status IN ('unknown', 'expired')) AS late_now
  FROM messages m WHERE m.organization_id = chunk.organization_id
   AND m.id BETWEEN chunk.first_id AND chunk.last_id AND m.campaign_id = chunk.campaign_id
"""

    def __init__(self) -> None:
        self._charges = Charges()
        self._routing = RoutingCache()

    async def open(self, conn: Connection, due: DueCampaign) -> SmsBatch | StagingStop:
        """The text and the quota, unless the sender is no longer approved."""
        row = await conn.fetchrow(OPEN, due.organization_id, due.id)
        assert row is not None
        text, traffic_class, sender_id, sender, status, remaining, left_today, usual = row
        if status != "approved":
            return StagingStop(plan.SENDER, fails=True)
        opened = await text_keys.read(conn, TABLE, [Item(due.organization_id, due.id, text)])
        (text,) = opened.texts
        if text is None and opened.locked:
            raise Unavailable  # the step is retried later
        if text is None:
            return StagingStop(plan.ERASED, fails=True)
        await self._charges.refresh(conn)
        await self._routing.refresh(conn)
        return SmsBatch(
            due,
            text,
            traffic_class,
            sender_id,
            sender,
            remaining,
            left_today,
            kinds.validity(traffic_class, None, usual),
            self._charges,
            self._routing,
            await Sealing.of(conn, [due.organization_id]),
        )

    async def unsent(self, conn: Connection, due: DueCampaign, first_id: UUID, last_id: UUID) -> list[UUID]:
        """Ids of these messages that no supplier has."""
        rows = await conn.fetch(UNSENT, due.organization_id, first_id, last_id, due.id)
        return sorted(await withdrawal.not_taken(conn, [(due.organization_id, row["id"]) for row in rows]))

    async def withdraw(self, conn: Connection, due: DueCampaign, first_id: UUID, last_id: UUID) -> None:
        """Cancel and refund those of these messages that were not sent."""
        rows = await conn.fetch(UNSENT, due.organization_id, first_id, last_id, due.id)
        unsent = [Unsent(due.organization_id, row["id"], row["segments"]) for row in rows]
        try:
            await withdrawal.withdraw(conn, unsent, at=due.at, reason="campaign canceled")
        except AlreadyAttempted:
            raise plan.StepOutdated from None


class SmsBatch:
    """One text for the recipients of a step. Implements `contract.Batch`."""

    def __init__(
        self,
        due: DueCampaign,
        text: str,
        traffic_class: str,
        sender_id: UUID,
        sender: str,
        remaining: int,
        left_today: int | None,
        validity: int | None,
        charges: Charges,
        routing_cache: RoutingCache,
        sealing: Sealing,
    ) -> None:
        """`remaining`: messages left in the quota; `left_today`: segments that may still be sent today, if that is
        limited. `validity`: how long a message is worth delivering once it is due, in seconds; None: the horizon of the
        retry schedule."""
        self._remaining, self._left_today = remaining, left_today
        self._due, self._text, self._sender_id, self._sender = due, text, sender_id, sender
        self._class = traffic_class
        self._validity = None if validity is None else timedelta(seconds=validity)
        self._sealing = sealing
        prices = charges.book.price_list(due.organization_id) if due.mode == "live" else None
        self._charges = None if prices is None else charges
        self._routing = routing_cache if due.mode == "live" and routing_cache.book.judges else None
        #: A price list that is imported again is a different object.
        self.key = (
            text,
            due.smart_encoding,
            due.replace_accents,
            due.mode,
            prices,
            self._routing and routing_cache.book,
        )
        self._is_live = due.mode == "live"
        self._fill = template.filler(text) if template.places(text) else None
        self._for_all = self._made(text)

    def make(self, recipient: Recipient) -> Text | None:
        """The recipient's text; None: too long with their values, or nothing is sent there."""
        phone, name, first_name, last_name, _ = recipient
        if self._fill is None:
            made = self._for_all
        else:
            made = self._made(self._fill((phone, name or "", first_name or "", last_name or "")))
        if made is None or (self._routing is not None and self._is_refused(phone)):
            return None
        if self._charges is None:
            return made
        try:
            price = self._charges.price(
                self._due.organization_id, phone, self._sender, made.segments, self._due.at, self._class
            )
        except DestinationNotAllowed:
            return None
        return made if price is None else Text(made.cost, made.text, made.encoding, made.segments, price)

    def short(self, messages: int, cost: int) -> str | None:
        """QUOTA or SPENT: a quota counts messages, a day's limit segments. QUOTA first, since a new day would not help
        then."""
        # A day's limit may be lowered below what is used: then less than nothing is left, which covers no messages.
        if not self._is_live or not messages:
            return None
        if messages > self._remaining:
            return plan.QUOTA
        return plan.SPENT if self._left_today is not None and cost > self._left_today else None

    def _is_refused(self, phone: str) -> bool:
        """True if no supplier carries its sender there."""
        assert self._routing is not None
        refusal = self._routing.refusal(
            phone,
            organization_id=self._due.organization_id,
            sender_id=self._sender_id,
            sender=self._sender,
            traffic_class=self._class,
        )
        return refusal is not None

    async def accept(
        self, conn: Connection, ids: Sequence[UUID], recipients: Sequence[str], made: Sequence[Any], due: list[datetime]
    ) -> bool:
        """Store the messages, and debit the quota."""
        whose = self._due.organization_id
        texts = [] if self._fill is None else [text_keys.kept_open(one.text) for one in made]
        if self._sealing.seals(whose):
            texts = [self._sealing.sealed(whose, "messages", id, one.text) for id, one in zip(ids, made, strict=True)]
        left = await bulk.accept_bulk(
            conn,
            Bulk(
                organization_id=whose,
                mode=self._due.mode,
                campaign_id=self._due.id,
                sender_id=self._sender_id,
                sender=self._sender,
                request_id=self._due.request_id,
                ids=ids,
                recipients=recipients,
                texts=texts,
                text=text_keys.kept_open(self._text),
                encodings=[one.encoding for one in made],
                segments=[one.segments for one in made],
                due=due,
                traffic_class=self._class,
                validity=self._validity,
                prices=[one.price for one in made],
            ),
            at=self._due.accepted_at(ids),
        )
        return left is not None

    def _made(self, text: str) -> Text | None:
        measured = template.measure(text, smart=self._due.smart_encoding, accents=self._due.replace_accents)
        if measured is None:
            return None
        return Text(measured[1] if self._is_live else 0, text, *measured)
