"""Accepting messages: what a 202 promises.

Sends that arrive while one batch is being committed go into the next (`sending/intake.py`). One call of `sms_accept`
(accept.sql), or of `sms_accept_one` for a batch of one, stores message, queue row, quota debit and idempotency record
of a whole batch in one commit, and only then is anything answered. Both HTTP and the command line use this module.

The rule nobody may break: nothing is answered before it is committed, and a bad message never fails its batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph import traces
from heliograph.accounts import spending
from heliograph.accounts.organizations import forbidden
from heliograph.accounts.quota import QuotaExceeded
from heliograph.accounts.requests import Answer, IdempotencyConflict, OverLimit, RateUnit, tell, windows_of
from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.batching import HeldConnection
from heliograph.base.database.clock import iso, now
from heliograph.base.database.pool import Connection, Pool, fetch_hot, is_down
from heliograph.base.errors import Invalid, Refusal, Unavailable
from heliograph.base.loading_cache import Current
from heliograph.base.money import Charge, columns
from heliograph.base.process.spans import Context
from heliograph.base.retry import SUBMIT_HORIZON
from heliograph.classes import kinds
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.guard import holds
from heliograph.guard.book import Book
from heliograph.queue.leases import SINGLE
from heliograph.sealing.text_keys import Sealing
from heliograph.sending.intake import Intake, both, new_id, outcomes, senders_of, traced_of
from heliograph.sms.accepting import encoding
from heliograph.sms.accepting.routing_cache import RoutingCache
from heliograph.sms.accepting.sender_choice import SenderBook, by_default
from heliograph.sms.accepting.sender_ids import SenderId
from heliograph.sms.charges import CurrentCharges

#: Maximum number of segments of a message. Networks deliver longer ones unreliably, and each one is billed.
MAX_SEGMENTS = 10
#: How much text fits into that many segments.
HOLD = "1530 characters of the GSM alphabet, or 670 if any is not in it"
#: How far before and after the present a message may be due.
MAX_PAST, MAX_AHEAD = timedelta(seconds=60), timedelta(days=365)
#: Maximum length of a text and of a reference in characters, and range of a validity in seconds, for every interface.
MAX_TEXT, MAX_REFERENCE, VALIDITY = 1_600, 255, (60, 259_200)
#: The classes of messages, by which routes, limits and quiet hours distinguish them.
TRAFFIC_CLASSES = kinds.NAMES
SUPPLIER_WORD = b"heliograph"


class Send(msgspec.Struct, frozen=True, gc=False):
    """A message to accept. The API has checked its form; state is checked here."""

    actor: Actor
    #: E.164 with `+`.
    to: str
    text: str
    sender_id: UUID | None = None
    sender_name: str | None = None
    client_reference: str | None = None
    request_id: str = ""
    #: First 16 bytes of SHA-256 over method, path and idempotency key; None: none was sent.
    key_hash: UUID | None = None
    #: SHA-256 of the canonical validated body.
    request_hash: bytes | None = None
    send_at: datetime | None = None
    validity_seconds: int | None = None
    #: None: the organization's.
    guarantee: str | None = None
    #: One of `TRAFFIC_CLASSES`.
    traffic_class: str = "transactional"
    campaign_id: UUID | None = None
    #: The sender made sure that a person requested it, which matters where the organization's policy is `ask`.
    challenge_passed: bool = False
    lane: int = SINGLE
    rate_unit: RateUnit | None = None
    #: The id that the message will have; None: a new one.
    id: UUID | None = None
    #: The trace context of its request, if that is traced.
    trace: Context | None = None


class _Item(msgspec.Struct, frozen=True, gc=False):
    """A Send with everything that the batch needs."""

    send: Send
    id: UUID
    sender: SenderId | None
    encoding: str
    segments: int
    #: Its text, as stored; empty if it is refused.
    text: str
    #: The price for its organization; None: there is none.
    price: Charge | None
    #: A refusal found before the batch; the answer unless the idempotency key already has one.
    refusal: Refusal | None


# Waits at most 2 s for another process's commit (accept.sql), and then fails as a whole. Times of acceptance, sending
# and expiry come from the database, whatever this machine's clock says.
ACCEPT = """
SELECT remaining, used, window_start, at, verdict, since, message, reference
  FROM sms_accept(date_trunc('milliseconds', now()), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15,
    $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35)
"""
# A batch of one, as produced by a client that sends one message after another. Its result is one value, a row: in FROM,
# PostgreSQL would store it before it returns it.
ACCEPT_ONE = """
SELECT sms_accept_one(date_trunc('milliseconds', now()), $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14,
    $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31)
"""
#: Columns with the decision on an item of a batch; the first is NULL if it was simply stored.
DECIDED = ("verdict", "remaining", "since", "message", "reference")
#: The rate bucket of sends.
BUCKET = "sms_send"


class Acceptor:
    """Accepts messages in batches; one per process."""

    def __init__(self, pool: Pool, *, limit: int = 512, keys_kept: timedelta = timedelta(hours=72)) -> None:
        self._kept = HeldConnection(pool)
        #: How long an idempotency key is remembered.
        self._keys_kept = keys_kept
        self._senders = SenderBook(pool)
        self._suspicious = Book(pool)
        self.charges = CurrentCharges(pool)
        self.routing = Current(pool, RoutingCache())
        self._sealing = Current(pool, Sealing())
        self.intake: Intake[_Item] = Intake(self._store, name="sms accept", limit=limit)
        #: Set after each commit that put work into the queue; cleared by the task that wakes the workers.
        self.stored = asyncio.Event()

    async def accept(self, send: Send, *, with_others: bool = False) -> Answer:
        """Store one message. Returns the 202, or the stored answer of the same idempotency key.

        Raises the first of these that applies: Invalid (`to` is not an E.164 number); IdempotencyConflict,
        IdempotencyInProgress; Invalid (`send_at` out of range, too many segments), OrganizationSuspended,
        DestinationNotAllowed, DestinationSuspicious, ChallengeRequired; Invalid (unknown sender), RecipientOptedOut,
        SenderIdNotApproved, SenderIdNotAllowed, SpendLimitReached, QuotaExceeded; and OverLimit and Unavailable. A key
        that has an outcome replays it, whatever the current time and settings. If the caller is cancelled, the message
        is stored completely or not at all. `with_others`: see `Intake.put`.
        """
        return await self.intake.put(await self._prepare(send), with_others=with_others)

    async def accept_many(self, sends: Sequence[Send]) -> list[Answer | Refusal]:
        """Store several messages; returns the answer or refusal for each."""
        return await outcomes([self.accept(send, with_others=True) for send in sends])

    async def price(
        self, send: Send, sender: SenderId, segments: int, *, conn: Connection | None = None
    ) -> Charge | None:
        """The price of a live message, fixed from now on, however the price list changes. Raises DestinationNotAllowed
        if the organization's price list rejects the destination. `conn`: a connection that the caller holds."""
        charges = await self.charges.get(conn)
        if not charges.book.has_lists:
            return None
        return charges.price(send.actor.organization_id, send.to, sender.value, segments, now(), send.traffic_class)

    async def check_sender(self, send: Send, sender: SenderId, *, conn: Connection | None = None) -> None:
        """Raises SenderIdNotAllowed if no supplier carries a live message from this sender to its number. `conn`: a
        connection that the caller holds."""
        refusal = (await self.routing.get(conn)).refusal(
            send.to,
            organization_id=send.actor.organization_id,
            sender_id=sender.id,
            sender=sender.value,
            traffic_class=send.traffic_class,
        )
        if refusal is not None:
            raise refusal

    async def drain(self) -> None:
        """Wait until every batch is committed."""
        await self.intake.drain()
        await self._suspicious.close()
        await self.charges.close()
        await self.routing.close()
        await self._sealing.close()
        await self._kept.close()

    async def _prepare(self, send: Send) -> _Item:
        if phones.parse(send.to) != send.to:  # a malformed number in the queue would stop all dispatch
            raise Invalid(("to", "pattern", "`to` must be a phone number with country code: `+258841234567`"))
        kind, segments = encoding.count(send.text, smart=send.actor.smart_encoding, accents=send.actor.replace_accents)
        sender: SenderId | None = None
        price: Charge | None = None
        refusal = unfit(send, segments) or forbidden(send.actor, send.to)
        id, text = new_id(send), ""
        if refusal is None:
            try:
                if is_guarded(send):
                    refusal = await self._suspicious.refusal(
                        send.actor.organization_id, send.to, send.traffic_class, challenged=send.challenge_passed
                    )
                if refusal is None:
                    sender = await self._senders.resolve(
                        send.actor, sender_id=send.sender_id, sender_name=send.sender_name
                    )
                    if send.actor.mode == "live":
                        await self.check_sender(send, sender)
                        price = await self.price(send, sender, segments)
                    sealing = await self._sealing.get()
                    text = sealing.sealed(send.actor.organization_id, "messages", id, send.text)
            except Refusal as refused:
                refusal = refused
            except Exception as error:
                if is_down(error):
                    raise Unavailable from error
                raise
        return _Item(send, id, sender, kind, segments, text, price, refusal)

    async def _store_one(self, item: _Item) -> Answer | BaseException:
        send, sender, price = item.send, item.sender, item.price
        unit, fits = send.rate_unit, item.refusal is None
        async with self._kept.use() as conn:
            row = await fetch_hot(
                conn,
                ACCEPT_ONE,
                self._keys_kept,
                send.actor.organization_id,
                item.id,
                fits,
                send.actor.mode == "live",
                send.key_hash,
                send.request_hash,
                send.to,
                phones.country(send.to),
                sender.value if sender else "",
                sender.id if sender else None,
                send.client_reference,
                send.campaign_id,
                item.encoding,
                item.segments,
                send.guarantee or send.actor.guarantee,
                send.request_id,
                life(send) if fits else None,
                send.send_at if fits else None,
                send.lane,
                item.text,
                BUCKET,
                unit.key_id if unit else None,
                unit.limit if unit else None,
                send.actor.key_id,
                send.actor.user_id,
                send.traffic_class,
                *((price.amount, price.currency, price.due) if price else (None, None, None)),
                by_default(send.sender_id, send.sender_name),
            )
        assert row is not None
        self.stored.set()
        remaining, used, window_start, at, verdict, since, message, reference = row[0]
        if unit is not None:
            unit.used, unit.window_start, unit.at = used, window_start, at
        if verdict is None:
            return Answer(202, _body(item.id, send.client_reference, remaining), False)
        return _answer(item, verdict, remaining, since, message, reference)

    async def _store(self, items: list[_Item]) -> list[Answer | BaseException]:
        challenged = [item for item in items if item.send.challenge_passed and is_guarded(item.send)]
        traced = traced_of(items)
        if len(items) == 1 and not challenged and not traced:
            return [await self._store_one(items[0])]
        sends = [item.send for item in items]
        windows = windows_of([(send.actor.organization_id, send.rate_unit) for send in sends])
        async with self._kept.use() as conn, both(conn, bool(challenged or traced)):
            if traced:
                await traces.keep(conn, traced)
            if challenged:
                await holds.challenged(conn, [(item.send.actor.organization_id, item.id) for item in challenged])
            row = await fetch_hot(
                conn,
                ACCEPT,
                self._keys_kept,
                [send.actor.organization_id for send in sends],
                [item.id for item in items],
                [item.refusal is None for item in items],
                [send.actor.mode == "live" for send in sends],
                [send.key_hash for send in sends],
                [send.request_hash for send in sends],
                [send.to for send in sends],
                [phones.country(send.to) for send in sends],
                [item.sender.value if item.sender else "" for item in items],
                [item.sender.id if item.sender else None for item in items],
                [send.client_reference for send in sends],
                [send.campaign_id for send in sends],
                [item.encoding for item in items],
                [item.segments for item in items],
                [send.guarantee or send.actor.guarantee for send in sends],
                [send.request_id for send in sends],
                [None if item.refusal else life(item.send) for item in items],
                [None if item.refusal else item.send.send_at for item in items],
                [send.lane for send in sends],
                [item.text for item in items],
                BUCKET,
                *windows,
                [send.actor.key_id for send in sends],
                senders_of([send.actor for send in sends]),
                [send.traffic_class for send in sends],
                *columns([item.price for item in items]),
                [by_default(send.sender_id, send.sender_name) for send in sends],
            )
        assert row is not None
        self.stored.set()
        tell([send.rate_unit for send in sends], windows, row)
        return [
            Answer(202, _body(item.id, item.send.client_reference, left), False)
            if row["verdict"] is None
            else _answer(item, *(row[name] and row[name][n] for name in DECIDED))
            for n, (item, left) in enumerate(zip(items, row["remaining"], strict=True))
        ]


def is_guarded(send: Send) -> bool:
    """Whether the guard examines a send: test messages cost nothing, and the organization chose a campaign's
    recipients."""
    return send.actor.mode == "live" and send.campaign_id is None


def unfit(send: Send, segments: int) -> Invalid | None:
    """Problems of a send that depend on the current time and on the encoding of its text."""
    wrong = []
    if segments > MAX_SEGMENTS:
        text = f"`message` needs {segments} segments; {MAX_SEGMENTS} are allowed: {HOLD}"
        wrong.append(("message", "too_many_segments", text))
    if send.send_at is not None and not (at := now()) - MAX_PAST <= send.send_at <= at + MAX_AHEAD:
        wrong.append(("sendAt", "range", "`sendAt` must be between 60 seconds ago and 365 days ahead"))
    return Invalid(*wrong) if wrong else None


def life(send: Send) -> timedelta | None:
    """How long a message is worth delivering once it is due; None: the horizon of the retry schedule, from
    acceptance."""
    seconds = kinds.validity(send.traffic_class, send.validity_seconds, send.actor.validity_seconds)
    if seconds is not None:
        return timedelta(seconds=seconds)
    return timedelta(seconds=SUBMIT_HORIZON) if send.send_at else None


def expiry(at: datetime, send: Send) -> datetime | None:
    """When a message accepted at `at` is no longer worth delivering; None: see `life`."""
    lasts = life(send)
    return None if lasts is None else max(send.send_at or at, at) + lasts


def _answer(
    item: _Item, verdict: str, left: int, since: datetime | None, message: UUID | None, reference: str | None
) -> Answer | BaseException:
    """The answer to an item whose batch was not stored as a whole."""
    match verdict:
        case "stored":
            return Answer(202, _body(item.id, item.send.client_reference, left), False)
        case "replayed":
            assert message is not None
            return Answer(202, _body(message, reference, left), True)
        case "conflict":
            return IdempotencyConflict()
        case "opted_out":
            assert since is not None
            return RecipientOptedOut(since=iso(since))
        case "quota":
            return QuotaExceeded(remainingQuota=left, requested=1)
        case "limited":
            return OverLimit()
        case "spend_organization" | "spend_key":
            return spending.reached(verdict.removeprefix("spend_"))
    assert item.refusal is not None
    # An opt-out takes precedence over problems with the sender.
    if item.refusal.status == 409 and since is not None:
        return RecipientOptedOut(since=iso(since))
    return item.refusal


def _body(id: UUID, reference: str | None, left: int) -> bytes:
    """The body of the 202, which depends on the message's row alone, so that a replay returns the same bytes."""
    quoted = b"null" if reference is None else msgspec.json.encode(reference)
    return (
        b'{"success":true,"queued":true,"status":"accepted","count":1,"remainingQuota":%d,'
        b'"message":{"id":"%b","clientReference":%b},'
        b'"provider":{"code":"%b","messageId":null,"httpStatus":202}}'
    ) % (left, str(id).encode(), quoted, SUPPLIER_WORD)
