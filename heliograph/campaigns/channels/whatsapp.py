"""WhatsApp campaigns: a utility template with parameters filled from contacts, sent from one number and paid from the
wallet.

The rule nobody may break: template, number, rates and wallet are checked when a chunk is staged, not only when the
campaign is created. A problem that may resolve itself pauses a campaign; any other makes it fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.campaigns import filling, plan
from heliograph.campaigns.audience import Recipient
from heliograph.campaigns.channels.contract import DueCampaign, StagedMessage, StagingStop
from heliograph.campaigns.filling import Filling
from heliograph.campaigns.record import Campaign
from heliograph.queue.holds import AlreadyAttempted
from heliograph.sealing.text_keys import Sealing
from heliograph.sending.attempts import MAY_HAVE_ARRIVED
from heliograph.suppliers.whatsapp_cloud.bodies import TemplateLayout, layout
from heliograph.whatsapp.accepting import bulk, withdrawal
from heliograph.whatsapp.accepting.bulk import Bulk
from heliograph.whatsapp.mirror.numbers import PhoneNumberUnavailable
from heliograph.whatsapp.mirror.templates import (
    TemplateNotApproved,
    TemplateNotFound,
    TemplateNotSendable,
    TemplateParameterMismatch,
)
from heliograph.whatsapp.money.rates import ELSEWHERE

NAME = "whatsapp"
#: The only category allowed in campaigns.
CATEGORY = "utility"
#: Why a campaign is paused, or has failed.
FUNDS = "wallet_insufficient_funds"
NUMBER = "whatsapp_phone_number_unavailable"
TEMPLATE = "whatsapp_template_not_approved"
NOT_UTILITY = "whatsapp_template_not_utility"
MISMATCH = "whatsapp_template_parameter_mismatch"
NOT_SENDABLE = "whatsapp_template_not_sendable"
#: The prices of test messages: they cost nothing, and need no rates.
_FREE: Mapping[str, int] = {ELSEWHERE: 0}
#: Final states of a template.
_LOST = ("rejected", "disabled", "removed")


class WhatsAppCampaignSpec(plan.CampaignSpec, frozen=True, kw_only=True):
    """A WhatsApp campaign to be created."""

    number_id: UUID
    template: str
    #: As Meta writes it: `fr`, `en_US`.
    language: str
    #: One per parameter of the template, in its order.
    parameters: Sequence[Filling]


# Number, account and template, as read when a campaign is created and at each of its steps.
LOOK = """
       n.id AS number_id, t.id AS template_id, t.name, t.language, t.category, t.status, t.disabled_locally,
       t.components, t.parameter_format, t.ttl_seconds, a.currency,
       CASE WHEN w.currency = a.currency THEN w.available ELSE 0 END AS available,
       CASE WHEN n.state <> 'active' OR a.state = 'removed' THEN 'removed'
            WHEN a.state <> 'active' THEN 'paused'
            WHEN n.connection_status IN ('banned', 'disconnected') THEN n.connection_status END AS unavailable
"""
FIND = f"""
SELECT {LOOK}
  FROM whatsapp_numbers n
       JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
       LEFT JOIN whatsapp_templates t ON t.organization_id = n.organization_id AND t.account_id = n.account_id
                                     AND t.name = $3 AND t.language = $4
       LEFT JOIN wallets w ON w.organization_id = n.organization_id
 WHERE n.organization_id = $1 AND n.id = $2
"""
NUMBERS = """
SELECT id FROM whatsapp_numbers
 WHERE organization_id = $1 AND state = 'active' AND (id::text = lower($2) OR digits = $3) LIMIT 2
"""


async def find_number(conn: Connection, actor: Actor, text: str) -> UUID:
    """The organization's number given by an operator as id or digits. Raises Invalid."""
    digits = "".join(sign for sign in text if sign.isdigit())
    rows = await conn.fetch(NUMBERS, actor.organization_id, text, digits)
    if len(rows) != 1:
        raise Invalid(("number", "unknown", f"{text!r} is not a WhatsApp number of this organization"))
    id: UUID = rows[0]["id"]
    return id


async def create(conn: Connection, actor: Actor, *, spec: WhatsAppCampaignSpec, request_id: str) -> Campaign:
    """Create a campaign; a worker starts it within a second of its time. Runs in the caller's transaction.

    Raises Invalid (time, tags, recipients, number, category, parameters, no rates), TemplateNotFound,
    TemplateParameterMismatch, TemplateNotSendable, PhoneNumberUnavailable, TemplateNotApproved, and
    CampaignAudienceEmpty for one that starts at once without recipients.
    """
    checked = await plan.check_spec(conn, spec)
    row, _ = await _checked(conn, actor, spec=spec, at=checked.at)
    return await plan.begin(
        conn,
        actor,
        checked=checked,
        channel=NAME,
        content={
            "number_id": row["number_id"],
            "template_id": row["template_id"],
            "template_name": row["name"],
            "template_language": row["language"],
            "parameters": msgspec.json.encode(list(spec.parameters)).decode(),
        },
        with_names=any(one.column in ("name", "first_name", "last_name") for one in spec.parameters),
        request_id=request_id,
    )


class Estimate(msgspec.Struct, frozen=True):
    """The messages that a campaign would send, and the balance that would pay for them."""

    #: The template's body as a recipient would read it, the values, and the price in millionths; None: skipped.
    say: Callable[[Recipient], tuple[str, tuple[str, ...], int] | None]
    currency: str
    #: In millionths.
    available: int
    language: str
    template: str


async def estimate(conn: Connection, actor: Actor, *, spec: WhatsAppCampaignSpec, people: int) -> Estimate:
    """What the campaign would send if it started now, to `people` at most. Raises the same as `create` about number and
    template."""
    now = await conn.fetchval("SELECT now()")
    row, prices = await _checked(conn, actor, spec=spec, at=now)
    template = _layout(row)
    make = _maker(template, spec.parameters, prices)
    free = await _free(conn, actor.organization_id, row, prices, most=people, at=max(now, spec.scheduled_at or now))

    def say(recipient: Recipient) -> tuple[str, tuple[str, ...], int] | None:
        if (made := make(recipient)) is None:
            return None
        return template.text(made.parameters), made.parameters, 0 if recipient[0] in free else made.cost

    return Estimate(say, row["currency"], row["available"], row["language"], row["name"])


async def _checked(
    conn: Connection, actor: Actor, *, spec: WhatsAppCampaignSpec, at: datetime
) -> tuple[asyncpg.Record, Mapping[str, int]]:
    """The row of FIND, and prices by country. Raises the same as `create` about number and template."""
    row = await conn.fetchrow(FIND, actor.organization_id, spec.number_id, spec.template, spec.language)
    if row is None:
        raise Invalid(("number", "unknown", "`number` is not a WhatsApp number of this organization"))
    if row["template_id"] is None or row["disabled_locally"] or row["status"] == "removed":
        raise TemplateNotFound(name=spec.template, language=spec.language)
    if row["category"] != CATEGORY:
        why = {
            "authentication": "a one-time code is for one person who has just asked for it",
            "marketing": "marketing is not sent by this service",
        }[row["category"]]
        raise Invalid(("template", "category", f"campaigns can only send templates in the category utility: {why}"))
    _check_parameters(_layout(row), spec.parameters)
    prices = await _prices(conn, actor.mode, row["currency"], at)
    if not prices:
        raise Invalid(
            ("rates", "missing", f"there are no rates for utility messages in {row['currency']}: import them first")
        )
    if row["unavailable"]:
        raise PhoneNumberUnavailable(phoneNumberId=str(spec.number_id), reason=row["unavailable"])
    if row["status"] != "approved":
        raise TemplateNotApproved(templateId=str(row["template_id"]), status=row["status"])
    return row, prices


OPEN = f"""
SELECT {LOOK}, c.parameters
  FROM campaigns c
       JOIN whatsapp_numbers n ON n.organization_id = c.organization_id AND n.id = c.number_id
       JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
       JOIN whatsapp_templates t ON t.organization_id = c.organization_id AND t.id = c.template_id
       LEFT JOIN wallets w ON w.organization_id = c.organization_id
 WHERE c.organization_id = $1 AND c.id = $2
"""
PRICES = """
SELECT DISTINCT ON (country) country, price FROM whatsapp_rates
 WHERE currency = $1 AND category = $2 AND valid_from <= $3 ORDER BY country, valid_from DESC
"""
# Names of people whose conversation with this number is free beyond a time, because of an advertisement: for 72 hours
# from an answer that came within a day. So all those of the last days are read, not all of the organization.
FREE = """
SELECT DISTINCT names.name FROM whatsapp_conversations c
       CROSS JOIN LATERAL whatsapp_conversation_of($1, $2, c.recipient) known
       CROSS JOIN LATERAL names_of_person($1, c.recipient) names
 WHERE c.referred_at > $3::timestamptz - interval '4 days' AND c.organization_id IS NOT DISTINCT FROM $1
   AND c.number_id IS NOT DISTINCT FROM $2 AND c.free_until > $3 AND known.conversation_id = c.id
"""
# A message whose attempt may have been accepted is left to the worker that finds out. Written so that a plan cached
# while there were no messages still searches by id: LATERAL is not reordered, and the condition on the state is phrased
# so that the planner does not choose the index of deadlines, which contains every open message.
UNSENT = f"""
SELECT m.id
  FROM whatsapp_messages m LEFT JOIN LATERAL (
       SELECT a.attempt FROM attempts a
        WHERE a.organization_id = m.organization_id AND a.message_id = m.id
          AND a.state IN {MAY_HAVE_ARRIVED} LIMIT 1) tried ON true
 WHERE m.organization_id = $1 AND m.id BETWEEN $2 AND $3 AND m.campaign_id = $4
   AND m.status || '' = 'accepted' AND tried.attempt IS NULL
"""


class WhatsAppChannel:
    """Campaigns by WhatsApp. Implements `contract.Channel`."""

    name = NAME
    #: Some 40 ms, for most of which the wallet is locked if users are new: conversations are created after it.
    most = 250
    counted = f"""
SELECT count(*) FILTER (WHERE status = 'accepted') AS queued_now,
       count(*) FILTER (WHERE status = 'sent') AS sent_now,
       count(*) FILTER (WHERE status = 'delivered') AS delivered_now,
       count(*) FILTER (WHERE status = 'read') AS read_now,
       count(*) FILTER (WHERE status = 'failed') AS failed_now,
       -- Meta's status `sent` may never come: a failure that a status reported has Meta's code, and an attempt says
       -- whether Meta took the message or may have. It is checked last, and so only for the few that meet the rest.
       count(*) FILTER (WHERE status = 'failed' AND sent_at IS NULL AND failure_evidence IS NULL
                          AND (SELECT a.attempt FROM attempts a
                                WHERE a.organization_id = m.organization_id AND a.message_id = m.id
                                  AND a.state IN {MAY_HAVE_ARRIVED} LIMIT 1) IS NULL) AS never_sent_now,
       0::bigint AS unknown_now,
       count(*) FILTER (WHERE status = 'canceled') AS canceled_now,
       count(*) FILTER (WHERE status IN ('delivered', 'failed')) AS late_now
  FROM whatsapp_messages m WHERE m.organization_id = chunk.organization_id
   AND m.id BETWEEN chunk.first_id AND chunk.last_id AND m.campaign_id = chunk.campaign_id
"""

    async def open(self, conn: Connection, due: DueCampaign) -> WhatsAppBatch | StagingStop:
        """Template, prices and wallet, unless number or template prevent it from continuing."""
        row = await conn.fetchrow(OPEN, due.organization_id, due.id)
        assert row is not None
        if row["unavailable"]:
            return StagingStop(NUMBER, fails=row["unavailable"] == "removed")
        if row["disabled_locally"] or row["status"] != "approved":
            return StagingStop(TEMPLATE, fails=row["disabled_locally"] or row["status"] in _LOST)
        if row["category"] != CATEGORY:  # Meta may move a template to another category
            return StagingStop(NOT_UTILITY, fails=False)
        parameters = filling.read(row["parameters"])
        template = _layout(row)
        if template.unsupported:  # it has been edited, here and below
            return StagingStop(NOT_SENDABLE, fails=True)
        if template.parameter_count != len(parameters):
            return StagingStop(MISMATCH, fails=True)
        prices = await _prices(conn, due.mode, row["currency"], due.at)
        at = max(due.at, due.due_at or due.at)
        free = await _free(conn, due.organization_id, row, prices, most=self.most, at=at)
        sealing = await Sealing.of(conn, {due.organization_id})
        return WhatsAppBatch(due, row, template, parameters, prices, sealing, free)

    async def unsent(self, conn: Connection, due: DueCampaign, first_id: UUID, last_id: UUID) -> list[UUID]:
        """Ids of these messages that Meta does not have."""
        rows = await conn.fetch(UNSENT, due.organization_id, first_id, last_id, due.id)
        return sorted(row["id"] for row in rows)

    async def withdraw(self, conn: Connection, due: DueCampaign, first_id: UUID, last_id: UUID) -> None:
        """Cancel those of these messages that were not sent, and release the amounts reserved for them."""
        rows = await conn.fetch(UNSENT, due.organization_id, first_id, last_id, due.id)
        try:
            await withdrawal.withdraw(conn, [(due.organization_id, row["id"]) for row in rows], at=due.at)
        except AlreadyAttempted:
            raise plan.StepOutdated from None


class Values(StagedMessage, frozen=True, gc=False):
    """One recipient's values for the template, their country, and the list price in millionths."""

    parameters: tuple[str, ...]
    country: str
    price: int


class WhatsAppBatch:
    """One template for the recipients of a step. Implements `contract.Batch`."""

    def __init__(
        self,
        due: DueCampaign,
        row: asyncpg.Record,
        template: TemplateLayout,
        parameters: Sequence[Filling],
        prices: Mapping[str, int],
        sealing: Sealing,
        free: frozenset[str],
    ) -> None:
        """`free`: recipients whose messages cost nothing now, if the wallet may be short."""
        self._sealing, self._free = sealing, free
        self.key = (template, parameters, prices, due.mode, free)
        self._due, self._row = due, row
        self._make = _maker(template, parameters, prices)

    def make(self, recipient: Recipient) -> Values | None:
        """The recipient's values; None: the template refuses one, or there is no price for their country."""
        made = self._make(recipient)
        return msgspec.structs.replace(made, cost=0) if made is not None and recipient[0] in self._free else made

    def short(self, messages: int, cost: int) -> str | None:
        """FUNDS if the wallet does not cover this. Free messages are sent whatever the balance."""
        return FUNDS if cost > 0 and cost > self._row["available"] else None

    async def accept(
        self, conn: Connection, ids: Sequence[UUID], recipients: Sequence[str], made: Sequence[Any], due: list[datetime]
    ) -> bool:
        """Store the messages, and reserve their prices."""
        row = self._row
        left = await bulk.accept_bulk(
            conn,
            Bulk(
                organization_id=self._due.organization_id,
                mode=self._due.mode,
                campaign_id=self._due.id,
                number_id=row["number_id"],
                template_id=row["template_id"],
                template_name=row["name"],
                template_language=row["language"],
                category=row["category"],
                ttl_seconds=row["ttl_seconds"],
                currency=row["currency"],
                request_id=self._due.request_id,
                ids=ids,
                recipients=recipients,
                parameters=[one.parameters for one in made],
                prices=[one.price for one in made],
                countries=[one.country for one in made],
                due=due,
            ),
            at=self._due.accepted_at(ids),
            sealing=self._sealing,
        )
        return left is not None


def _maker(
    template: TemplateLayout, parameters: Sequence[Filling], prices: Mapping[str, int]
) -> Callable[[Recipient], Values | None]:
    """A function that returns a recipient's values and price; None: the template refuses one, or there is no price."""
    fill, takes, elsewhere = filling.filler(parameters), filling.judge(template, parameters), prices.get(ELSEWHERE)

    def make(recipient: Recipient) -> Values | None:
        country = phones.country(recipient[0])
        price = prices.get(country, elsewhere)
        if price is None:
            return None
        values = fill(recipient)
        return Values(price, values, country, price) if takes(values) else None

    return make


async def _prices(conn: Connection, mode: str, currency: str, at: datetime) -> Mapping[str, int]:
    """Current prices of a message in millionths, by country."""
    if mode != "live":
        return _FREE
    return {row["country"]: row["price"] for row in await conn.fetch(PRICES, currency, CATEGORY, at)}


async def _free(
    conn: Connection, organization_id: UUID, row: asyncpg.Record, prices: Mapping[str, int], *, most: int, at: datetime
) -> frozenset[str]:
    """Numbers whose messages cost nothing at this time; none if the wallet covers `most` messages at any price."""
    if row["available"] >= most * max(prices.values(), default=0):
        return frozenset()
    rows = await conn.fetch(FREE, organization_id, row["number_id"], at + plan.LEAD)
    # A recipient may be dialed in another spelling than Meta's, or have written under a user id.
    spelled = await phones.in_turns(phones.spellings, [one["name"] for one in rows])
    return frozenset(number for known in spelled for number in known)


def _layout(row: asyncpg.Record) -> TemplateLayout:
    return layout(msgspec.json.decode(row["components"]), row["parameter_format"], row["category"])


def _check_parameters(template: TemplateLayout, parameters: Sequence[Filling]) -> None:
    """Raises Invalid, TemplateParameterMismatch, TemplateNotSendable."""
    if template.unsupported:
        raise TemplateNotSendable(reason=template.unsupported)
    if len(parameters) != template.parameter_count:
        raise TemplateParameterMismatch(expected=template.parameter_count, received=len(parameters))
    filling.check(template, parameters)
