"""Accepting WhatsApp messages: the promise behind a 202.

Messages that arrive while a batch is being committed go into the next one (`sending/intake.py`). One call of
`whatsapp_accept` (accept.sql), or of `whatsapp_accept_one` for a batch of one, stores the messages, conversations,
queue rows, reservations and idempotency records of a whole batch in one commit; only then are the senders answered.

The rule nobody may break: no message is answered before it is committed, a bad message never fails its batch, and every
accepted message was covered by the wallet. Template, window and opt-out are checked again when the message is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph import traces
from heliograph.accounts.organizations import DestinationNotAllowed, forbidden
from heliograph.accounts.requests import Answer, IdempotencyConflict, OverLimit, RateUnit, tell, windows_of
from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.batching import HeldConnection
from heliograph.base.database.clock import iso, now
from heliograph.base.database.pool import Pool, fetch_hot, is_down
from heliograph.base.errors import Invalid, Refusal, Unavailable
from heliograph.base.ids import uuid7
from heliograph.base.loading_cache import Current
from heliograph.base.money import decimal
from heliograph.base.process.settings import Settings
from heliograph.base.process.spans import Context
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.queue.leases import SINGLE
from heliograph.sealing.text_keys import Sealing
from heliograph.sending.intake import Intake, both, new_id, outcomes, senders_of, traced_of
from heliograph.whatsapp.accepting.lifetimes import lifetime
from heliograph.whatsapp.mirror.numbers import Number, NumberBook, unavailable
from heliograph.whatsapp.mirror.templates import (
    Template,
    TemplateBook,
    TemplateNotApproved,
    TemplateNotSendable,
    TemplateParameterMismatch,
)
from heliograph.whatsapp.money.rates import RateBook
from heliograph.whatsapp.money.wallet import WalletInsufficientFunds

#: The table that contents are stored in; sealed contents are bound to its name.
TABLE = "whatsapp_messages"
#: The rate bucket of sends.
BUCKET = "mutations"
#: The billing category of a text reply.
SERVICE = "service"


class WindowClosed(Refusal):
    """The user's service window with this number is closed: only a template can be sent."""

    code, status = "whatsapp_window_closed", 409


class TemplateSend(msgspec.Struct, frozen=True, gc=False):
    """A template and its values, in the order of `suppliers.whatsapp_cloud.bodies`."""

    name: str
    language: str
    #: The category according to the sender; it must match Meta's.
    category: str
    parameters: tuple[str, ...]


class TextReply(msgspec.Struct, frozen=True, gc=False):
    """Free text, only inside the service window."""

    body: str
    preview_url: bool = False


class Send(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message to accept. The API has checked its format; state is checked here."""

    actor: Actor
    #: E.164 with `+`.
    to: str
    number_id: UUID
    content: TemplateSend | TextReply
    client_reference: str | None = None
    request_id: str = ""
    #: First 16 bytes of SHA-256 over method, path and idempotency key; None: no key was sent.
    key_hash: UUID | None = None
    #: SHA-256 of the canonical validated body.
    request_hash: bytes | None = None
    rate_unit: RateUnit | None = None
    campaign_id: UUID | None = None
    lane: int = SINGLE
    #: The message's id; None: a new one.
    id: UUID | None = None
    #: The request that sends it, if that is traced.
    trace: Context | None = None
    send_at: datetime | None = None


class _Item(msgspec.Struct, frozen=True, gc=False):
    """A Send with everything that the batch needs."""

    send: Send
    id: UUID
    number: Number | None
    template: Template | None
    category: str
    country: str
    #: List price, millionths.
    price: int
    #: Its content as stored; empty if it is refused.
    content: str
    #: A refusal found before the batch; the answer unless the idempotency key already has one.
    refusal: Refusal | None


# It waits at most 2 s for another process's commit (accept.sql), and then fails as a whole. Times of acceptance, of
# sending and of expiry are the database's, whatever this machine's clock says.
ACCEPT = """
SELECT used, window_start, at, verdict, price, available, since, expires, message, reference
  FROM whatsapp_accept(date_trunc('milliseconds', now()), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14,
    $15, $16, $17, $18, $19,
    ARRAY(SELECT coalesce(due, date_trunc('milliseconds', now())) + life
            FROM unnest($20::interval[], $21::timestamptz[]) WITH ORDINALITY AS item (life, due, n) ORDER BY n),
    $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35)
"""
# A batch of one, as produced by a client that sends one message after another. Its result is one value, a row: in FROM,
# PostgreSQL would store it before it returns it.
ACCEPT_ONE = """
SELECT whatsapp_accept_one(date_trunc('milliseconds', now()), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
    $14, $15, $16, $17, $18, $19, coalesce($21, date_trunc('milliseconds', now())) + $20,
    $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31)
"""
#: Columns with the decision about an item of a batch; the first is NULL if the whole batch was stored.
DECIDED = ("verdict", "price", "available", "since", "expires", "message", "reference")


class Acceptor:
    """Accepts messages in batches; one per process."""

    def __init__(self, pool: Pool, *, settings: Settings, limit: int = 512) -> None:
        self._kept = HeldConnection(pool)
        self._margin = settings.whatsapp_window_margin_seconds
        self._keys_kept = timedelta(hours=settings.idempotency_hours)
        self._numbers = NumberBook(pool)
        self._templates = TemplateBook(pool)
        self._rates = RateBook(pool)
        self._sealing = Current(pool, Sealing())
        self.intake: Intake[_Item] = Intake(self._store, name="whatsapp accept", limit=limit)
        #: Set after each commit that put work into the queue; the code that wakes the workers clears it.
        self.stored = asyncio.Event()

    async def accept(self, send: Send, *, with_others: bool = False) -> Answer:
        """Store one message. Returns the 202, or the stored answer of the same idempotency key.

        Raises the first of these that applies: IdempotencyConflict, IdempotencyInProgress; OrganizationSuspended,
        DestinationNotAllowed; Invalid (unknown number, wrong category, values that Meta would refuse),
        TemplateNotFound, TemplateParameterMismatch; DestinationNotAllowed (there is no rate); RecipientOptedOut,
        PhoneNumberUnavailable, TemplateNotSendable, TemplateNotApproved, WindowClosed, WalletInsufficientFunds; and
        OverLimit and Unavailable. A key that has an outcome replays it, whatever has happened to number and template
        since. If the caller is cancelled, the message is stored completely or not at all. `with_others`: as in
        `Intake.put`.
        """
        return await self.intake.put(await self.prepare(send), with_others=with_others)

    async def accept_many(self, sends: Sequence[Send]) -> list[Answer | Refusal]:
        """Store several messages; each gets its answer or its refusal."""
        return await outcomes([self.accept(send, with_others=True) for send in sends])

    async def drain(self) -> None:
        """Wait until every batch is committed."""
        await self.intake.drain()
        await self._sealing.close()
        await self._kept.close()

    async def prepare(self, send: Send) -> _Item:
        """A send with everything that can be decided before its batch."""
        content, country = send.content, phones.country(send.to)
        number: Number | None = None
        template: Template | None = None
        price = 0
        category = content.category if isinstance(content, TemplateSend) else SERVICE
        id, kept = new_id(send), ""
        refusal = forbidden(send.actor, send.to)
        if refusal is not None:  # this is reported before anything is looked up
            return _Item(send, id, None, None, category, country, 0, kept, refusal)
        try:
            number = await self._numbers.find(send.actor, send.number_id)
            if number.reason == "removed":  # its account's templates may be gone, too
                raise unavailable(number)
            if isinstance(content, TemplateSend):
                template = await self._templates.find(send.actor, number, content.name, content.language)
                check(template, content)
            if send.actor.mode == "live":
                rate = await self._rates.price(number.currency, category, country, send.send_at or now())
                price = rate or 0
                refusal = DestinationNotAllowed(country=country, reason="not_carried") if rate is None else None
            if refusal is None and not number.sendable:
                refusal = unavailable(number)
            if refusal is None and template is not None and template.layout.unsupported:
                refusal = TemplateNotSendable(templateId=str(template.id), reason=template.layout.unsupported)
            if refusal is None and template is not None and template.status != "approved":
                refusal = TemplateNotApproved(templateId=str(template.id), status=template.status)
            if refusal is None:
                sealing = await self._sealing.get()
                kept = sealing.sealed(send.actor.organization_id, TABLE, id, content_of(content))
        except Refusal as refused:
            refusal = refused
        except Exception as error:
            if is_down(error):
                raise Unavailable from error
            raise
        return _Item(send, id, number, template, category, country, price, kept, refusal)

    async def _store_one(self, item: _Item) -> Answer | BaseException:
        send, template, unit = item.send, item.template, item.send.rate_unit
        async with self._kept.use() as conn:
            row = await fetch_hot(
                conn,
                ACCEPT_ONE,
                self._keys_kept,
                self._margin,
                send.actor.organization_id,
                item.id,
                item.refusal is None,
                send.actor.mode == "live",
                send.key_hash,
                send.request_hash,
                send.to,
                send.number_id,
                uuid7(),
                "text" if isinstance(send.content, TextReply) else "template",
                template.id if template else None,
                template.name if template else None,
                template.language if template else None,
                item.category,
                send.client_reference,
                send.campaign_id,
                send.request_id,
                lifetime(item.category, template.ttl_seconds if template else None),
                send.send_at,
                send.lane,
                item.content,
                item.number.currency if item.number else None,
                item.price,
                item.country,
                BUCKET,
                unit.key_id if unit else None,
                unit.limit if unit else None,
                send.actor.key_id,
                send.actor.user_id,
            )
        assert row is not None
        self.stored.set()
        used, window_start, at, *decided = row[0]
        if unit is not None:
            unit.used, unit.window_start, unit.at = used, window_start, at
        if decided[0] is None:
            return Answer(202, _body(item.id, send.client_reference), False)
        return _answer(item, *decided)

    async def _store(self, items: list[_Item]) -> list[Answer | BaseException]:
        traced = traced_of(items)
        if len(items) == 1 and not traced:
            return [await self._store_one(items[0])]
        sends = [item.send for item in items]
        windows = windows_of([(send.actor.organization_id, send.rate_unit) for send in sends])
        async with self._kept.use() as conn, both(conn, bool(traced)):
            if traced:
                await traces.keep(conn, traced)
            row = await fetch_hot(
                conn,
                ACCEPT,
                self._keys_kept,
                self._margin,
                [send.actor.organization_id for send in sends],
                [item.id for item in items],
                [item.refusal is None for item in items],
                [send.actor.mode == "live" for send in sends],
                [send.key_hash for send in sends],
                [send.request_hash for send in sends],
                [send.to for send in sends],
                [send.number_id for send in sends],
                [uuid7() for _ in items],
                ["text" if isinstance(send.content, TextReply) else "template" for send in sends],
                [item.template.id if item.template else None for item in items],
                [item.template.name if item.template else None for item in items],
                [item.template.language if item.template else None for item in items],
                [item.category for item in items],
                [send.client_reference for send in sends],
                [send.campaign_id for send in sends],
                [send.request_id for send in sends],
                [lifetime(item.category, item.template.ttl_seconds if item.template else None) for item in items],
                [send.send_at for send in sends],
                [send.lane for send in sends],
                [item.content for item in items],
                [item.number.currency if item.number else None for item in items],
                [item.price for item in items],
                [item.country for item in items],
                BUCKET,
                *windows,
                [send.actor.key_id for send in sends],
                senders_of([send.actor for send in sends]),
            )
        assert row is not None
        self.stored.set()
        tell([send.rate_unit for send in sends], windows, row)
        return [
            Answer(202, _body(item.id, item.send.client_reference), False)
            if row["verdict"] is None
            else _answer(item, *(row[name] and row[name][n] for name in DECIDED))
            for n, item in enumerate(items)
        ]


def check(template: Template, content: TemplateSend) -> None:
    """Whether a template can be sent with these values. Raises Invalid, TemplateParameterMismatch.

    The values are not checked if the template cannot be sent at all.
    """
    if content.category != template.category:
        what = f"`template.category` must be the template's, which is `{template.category}`"
        if template.category == "marketing":  # perhaps since Meta moved it there
            what = "`template` is in Meta's category `marketing`, which is not sent by this service"
        raise Invalid(("template.category", "disagrees", what))
    if template.layout.unsupported:
        return
    if len(content.parameters) != template.parameter_count:
        raise TemplateParameterMismatch(expected=template.parameter_count, received=len(content.parameters))
    problems = template.layout.check(content.parameters)
    if problems:
        raise Invalid(*(_problem(one.index, one.text) for one in problems))


def content_of(content: TemplateSend | TextReply) -> str:
    """The content that is stored in the message's row, sealed or not: JSON."""
    if isinstance(content, TextReply):
        kept = {"type": "text", "body": content.body, "previewUrl": content.preview_url}
    else:
        kept = {"type": "template", "parameters": content.parameters}
    return msgspec.json.encode(kept).decode()


def _problem(index: int | None, text: str) -> tuple[str, str, str]:
    field = "template.parameters" if index is None else f"template.parameters[{index}]"
    return field, "format", f"`{field}`: {text}"


def _answer(
    item: _Item,
    verdict: str,
    price: int | None,
    available: int | None,
    since: datetime | None,
    expires: datetime | None,
    message: UUID | None,
    reference: str | None,
) -> Answer | BaseException:
    """The answer to an item of a batch that was only partly stored."""
    match verdict:
        case "stored":
            return Answer(202, _body(item.id, item.send.client_reference), False)
        case "replayed":
            assert message is not None
            return Answer(202, _body(message, reference), True)
        case "conflict":
            return IdempotencyConflict()
        case "opted_out":
            assert since is not None
            return RecipientOptedOut(since=iso(since))
        case "closed":
            return WindowClosed(serviceWindowExpiresAt=iso(expires) if expires else None)
        case "funds":
            assert item.number is not None
            return WalletInsufficientFunds(
                available=decimal(available or 0), required=decimal(price or 0), currency=item.number.currency
            )
        case "limited":
            return OverLimit()
    assert item.refusal is not None
    # An opt-out takes precedence over problems with the number.
    if item.refusal.status == 409 and since is not None:
        return RecipientOptedOut(since=iso(since))
    return item.refusal


def _body(id: UUID, reference: str | None) -> bytes:
    """The 202, which depends on the message's row alone: a replay is answered with the same bytes."""
    quoted = b"null" if reference is None else msgspec.json.encode(reference)
    return b'{"success":true,"queued":true,"status":"accepted","message":{"id":"%b","clientReference":%b}}' % (
        str(id).encode(),
        quoted,
    )
