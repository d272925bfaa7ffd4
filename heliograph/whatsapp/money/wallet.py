"""The wallet: the amount that an organization may spend on WhatsApp, in millionths of its currency.

    available ──reserve──▶ reserved ──consume──▶ consumed
        ▲                     │                     │
        └───release, lower────┘◀──────reprice───────┘   (a reprice may also take more)

A message reserves its price when it is accepted (`accept.sql`), and its outcome causes the other movements (`judge`,
`book`). The balance is a maintained row. Each change of it is a row in the same transaction: in `wallet_movements` if
caused by a message, otherwise in `wallet_ledger`. Once a month's messages are gone, its sum replaces its movements
(`closing.py`).

The rules nobody may break: total = available + reserved + consumed at every commit; entries are append-only, and their
sums are the wallet's; a message is charged once, whatever arrives, in whatever order and however often. `available` may
become negative only if Meta charges more than was reserved: it delivers a message that was given up or seemed free, or
names a more expensive category.

It has over 400 lines because everything that changes a wallet shares its lock and these rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Literal, Protocol
from uuid import UUID

import msgspec

from heliograph.accounts import organizations
from heliograph.audit import reasons
from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Actor, Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Problems, Refusal
from heliograph.base.ids import uuid7
from heliograph.base.money import MOST, decimal, is_currency

#: Currency of a wallet without money until the operator or an account specifies one.
DEFAULT_CURRENCY = "USD"
NO_CURRENCY = "`currency` is required for the first change, because there is no WhatsApp account to take it from"


class WalletInsufficientFunds(Refusal):
    """The available balance of the wallet does not cover this."""

    code, status = "wallet_insufficient_funds", 409


class Wallet(msgspec.Struct, frozen=True):
    """An organization's balance; amounts in millionths of `currency`."""

    #: None: neither a wallet nor an account exists.
    currency: str | None
    available: int
    reserved: int
    consumed: int
    total: int
    #: None: never used.
    updated_at: datetime | None
    #: Pages warn when less than this is available; None: never.
    alert_below: int | None = None

    @property
    def is_low(self) -> bool:
        """Whether less is available than the alert's threshold."""
        return self.alert_below is not None and self.available < self.alert_below


class Entry(msgspec.Struct, frozen=True):
    """One change of a wallet; amounts in millionths, signed."""

    id: UUID
    movement: str
    message_id: UUID | None
    key: str
    available: int
    reserved: int
    consumed: int
    reason: str | None
    created_at: datetime


class Charged(Protocol):
    """A message, as far as its charge depends on it."""

    organization_id: UUID
    id: UUID
    charge: str
    reserved: int
    consumed: int
    billing_category: str | None


class Movement(msgspec.Struct, frozen=True, gc=False):
    """A change to one message's charge.

    consume: Meta delivered it, for `amount`. release: it will not be delivered. lower: reserve no more than `amount`.
    reprice: the consumed amount should have been `amount`.
    """

    organization_id: UUID
    message_id: UUID
    kind: Literal["consume", "release", "lower", "reprice"]
    #: Millionths; 0 for a release.
    amount: int = 0
    #: Distinguishes prices for one message: Meta's pricing, such as "regular/utility".
    key: str = ""


class _Charge(msgspec.Struct):
    """A message's charge, while the movements of one call change it."""

    state: str
    reserved: int
    consumed: int
    category: str
    #: (movement, key) of entries booked before.
    seen: set[tuple[str, str]] = set()

    def apply(self, movement: Movement) -> tuple[str, str] | None:
        """Apply a movement; returns the (movement, key) of its entry, or None if it changes nothing."""
        match movement.kind, self.state:
            case "consume", "reserved" | "released":
                booked, after = ("consume", movement.key), ("consumed", 0, movement.amount)
            case "release", "reserved":
                booked, after = ("release", ""), ("released", 0, 0)
            case "lower", "reserved" if movement.amount < self.reserved:
                booked, after = ("reprice", f"reserved {movement.key}"), ("reserved", movement.amount, 0)
            case "reprice", "consumed" if ("consume", movement.key) not in self.seen:
                booked, after = ("reprice", movement.key), ("consumed", 0, movement.amount)
            case _:
                return None
        if booked in self.seen:
            return None
        self.seen.add(booked)
        self.state, self.reserved, self.consumed = after
        return booked


# ── Movements of messages ──────────────────────────────────────────────────────────────────────────────────────

# Read after the messages are locked: before that, another transaction might still add entries.
SEEN = """
SELECT item.id, booked.movement, booked.key
  FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id) CROSS JOIN LATERAL (
       SELECT movement, key FROM wallet_movements
        WHERE organization_id = item.organization_id AND message_id = item.id OFFSET 0) booked
"""

BOOK = """
INSERT INTO wallet_movements (organization_id, id, movement, message_id, key, available, reserved, consumed, created_at)
SELECT unnest($1::uuid[]), unnest($2::uuid[]), unnest($3::text[]), unnest($4::uuid[]), unnest($5::text[]),
       unnest($6::bigint[]), unnest($7::bigint[]), unnest($8::bigint[]), $9
"""

# A separate statement, and the last one: accepting for these organizations waits from here until the commit. Rows are
# locked in the order of the arrays, given how these connections plan joins, which is the order in which accepting locks
# wallets. The days are written while the wallets are locked, so no other transaction writes them.
BALANCE = """
WITH days AS (
    INSERT INTO wallet_days AS known (organization_id, day, category, messages, consumed)
    SELECT item.organization_id, ($5::timestamptz AT TIME ZONE 'UTC')::date, item.category, item.messages, item.consumed
      FROM unnest($6::uuid[], $7::text[], $8::bigint[], $9::bigint[])
           AS item (organization_id, category, messages, consumed)
    ON CONFLICT (organization_id, day, category) DO UPDATE
       SET messages = known.messages + excluded.messages, consumed = known.consumed + excluded.consumed
)
UPDATE wallets
   SET available = wallets.available + v.available, reserved = wallets.reserved + v.reserved,
       consumed = wallets.consumed + v.consumed, updated_at = $5
  FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[])
       AS v (organization_id, available, reserved, consumed)
 WHERE wallets.organization_id = v.organization_id
"""


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The effects of movements, decided but not yet written."""

    #: (organization, message) → charge, reserved, consumed.
    charges: dict[tuple[UUID, UUID], tuple[str, int, int]]
    #: Movement, its (movement, key), the changes to reserved and consumed, the message's category.
    entries: list[tuple[Movement, tuple[str, str], int, int, str]]


async def judge(conn: Connection, movements: Sequence[Movement], messages: Sequence[Charged]) -> Settlement:
    """Decide what movements change, for `messages` locked by the caller's transaction.

    Movements of one message are applied in order. A repeated one changes nothing, nor does one that the charge does not
    allow: a message is consumed once, released only while it is reserved, and a test key's is never charged. A released
    message that is delivered after all is consumed, and may make `available` negative.
    """
    charges = {
        (one.organization_id, one.id): _Charge(one.charge, one.reserved, one.consumed, one.billing_category or "")
        for one in messages
    }
    priced = {(one.organization_id, one.message_id) for one in movements if one.kind in ("lower", "reprice")}
    asked = [key for key in charges if key in priced]
    if asked:
        by_message = {key[1]: charges[key] for key in asked}
        for row in await conn.fetch(SEEN, [key[0] for key in asked], [key[1] for key in asked]):
            by_message[row["id"]].seen.add((row["movement"], row["key"]))
    entries: list[tuple[Movement, tuple[str, str], int, int, str]] = []
    for movement in movements:
        charge = charges.get((movement.organization_id, movement.message_id))
        if charge is None:
            continue
        reserved, consumed = charge.reserved, charge.consumed
        if booked := charge.apply(movement):
            changes = charge.reserved - reserved, charge.consumed - consumed
            entries.append((movement, booked, *changes, charge.category))
    return Settlement({key: (one.state, one.reserved, one.consumed) for key, one in charges.items()}, entries)


async def book(conn: Connection, made: Settlement) -> None:
    """Write the entries of a settlement and the wallets, in the caller's transaction, which has already written the
    messages' charges. Wallets stay locked from the last statement on: call it once per transaction, and do little
    after."""
    entries = made.entries
    if not entries:
        return
    by_organization: dict[UUID, list[int]] = {}
    by_category: dict[tuple[UUID, str], list[int]] = {}
    rows: list[tuple[object, ...]] = []
    for movement, (kind, key), reserved, consumed, category in entries:
        organization_id = movement.organization_id
        amounts = -reserved - consumed, reserved, consumed
        rows.append((organization_id, uuid7(), kind, movement.message_id, key, *amounts))
        sums = by_organization.setdefault(organization_id, [0, 0])
        sums[0] += reserved
        sums[1] += consumed
        if consumed or kind == "consume":
            day = by_category.setdefault((organization_id, category), [0, 0])
            day[0] += kind == "consume"
            day[1] += consumed
    at = clock.now()
    await conn.execute(BOOK, *zip(*rows, strict=True), at)
    sums_of = sorted(by_organization.items(), key=lambda one: one[0].int)
    await conn.execute(
        BALANCE,
        [organization_id for organization_id, _ in sums_of],
        [-reserved - consumed for _, (reserved, consumed) in sums_of],
        [reserved for _, (reserved, _) in sums_of],
        [consumed for _, (_, consumed) in sums_of],
        at,
        [organization_id for organization_id, _ in by_category],
        [category for _, category in by_category],
        [messages for messages, _ in by_category.values()],
        [consumed for _, consumed in by_category.values()],
    )


# ── Changes by operators ──────────────────────────────────────────────────────────────────────────────────────────

COLUMNS = "currency, available, reserved, consumed, total, updated_at, alert_below"

# A new wallet gets the currency of the organization's first account, unless one is given.
ENSURE = """
INSERT INTO wallets (organization_id, currency, updated_at)
SELECT $1, coalesce($2, (SELECT currency FROM whatsapp_accounts WHERE organization_id = $1 AND state <> 'removed'
                          ORDER BY id LIMIT 1), $3), $4
    ON CONFLICT DO NOTHING
"""
HELD = f"SELECT {COLUMNS} FROM wallets WHERE organization_id = $1 FOR UPDATE"
# A top-up above the alert's threshold rearms it, however soon the money is spent.
CHANGE = f"""
UPDATE wallets
   SET available = available + $2, total = total + $2, currency = $3::text, updated_at = $4,
       is_alerted = is_alerted AND coalesce(available + $2 < alert_below, false)
 WHERE organization_id = $1
RETURNING {COLUMNS}
"""
RECORD = """
INSERT INTO wallet_ledger (organization_id, id, movement, available, reason, created_at) VALUES ($1, $2, $3, $4, $5, $6)
"""
# Entries of free messages moved no money.
USED = """
SELECT EXISTS (SELECT FROM wallet_entries WHERE organization_id = $1 AND (available, reserved, consumed) <> (0, 0, 0))
"""


async def top_up(
    conn: Connection,
    organization_id: UUID,
    *,
    amount: int,
    currency: str | None = None,
    reason: str = "top-up",
    by: Principal = SYSTEM,
) -> Wallet:
    """Add `amount` millionths. `currency`: a wallet that was never used takes it, by default that of the organization's
    first account; otherwise it must be the wallet's. It is for good, so without an account it is not guessed.

    Raises Invalid, NotFound.
    """
    return await _change(conn, organization_id, "top_up", amount, currency, reason, by)


async def adjust(
    conn: Connection,
    organization_id: UUID,
    *,
    amount: int,
    currency: str | None = None,
    reason: str,
    by: Principal = SYSTEM,
) -> Wallet:
    """Correct the wallet by `amount` millionths, up or down, never below the sum of reserved and consumed.

    Raises Invalid, NotFound, WalletInsufficientFunds.
    """
    return await _change(conn, organization_id, "adjustment", amount, currency, reason, by)


async def _change(
    conn: Connection,
    organization_id: UUID,
    movement: str,
    amount: int,
    currency: str | None,
    reason: str,
    by: Principal,
) -> Wallet:
    wrong = Problems()
    if movement == "top_up" and amount <= 0:
        wrong.add("amount", "range", "`amount` must be positive; use adjust to correct a top-up")
    elif amount == 0 or abs(amount) > MOST:
        wrong.add("amount", "range", "`amount` must not be 0, and must be at most 1,000,000,000 either way")
    if (why := reasons.normalized(reason)) is None:
        wrong.add("reason", "length", f"`reason` must have 1 to {reasons.LONGEST} printable characters")
    if currency is not None and not is_currency(currency):
        wrong.add("currency", "pattern", "`currency` must be an ISO 4217 code, such as EUR")
    wrong.report()
    assert why is not None
    at = clock.now()
    async with conn.transaction():
        await organizations.get(conn, id=organization_id)
        await conn.execute(ENSURE, organization_id, currency, DEFAULT_CURRENCY, at)
        held = await conn.fetchrow(HELD, organization_id)
        assert held is not None
        known = Wallet(*held)
        is_used = await conn.fetchval(USED, organization_id)
        if is_used:
            if currency not in (None, known.currency):
                raise Invalid(("currency", "disagrees", f"this wallet is in {known.currency}, and that cannot change"))
            currency = known.currency
        else:
            # Setting an alert may have created the wallet before there was an account.
            currency = currency or await conn.fetchval(ACCOUNT, organization_id)
        if amount < 0 and known.available + amount < 0:
            raise WalletInsufficientFunds(
                available=decimal(known.available), required=decimal(-amount), currency=currency or known.currency
            )
        if currency is None:
            raise Invalid(("currency", "required", NO_CURRENCY))
        row = await conn.fetchrow(CHANGE, organization_id, amount, currency, at)
        assert row is not None
        await conn.execute(RECORD, organization_id, uuid7(), movement, amount, why, at)
        await audit.record(
            conn,
            by,
            "wallet.changed",
            object_id=organization_id,
            organization_id=organization_id,
            # Differences alone would leave out the currency of every later change. One that was never used had the
            # currency of nobody's choice.
            before={"total": decimal(known.total)} | ({} if is_used else {"currency": None}),
            after={"total": decimal(known.total + amount), "currency": currency},
            reason=why,
        )
    return Wallet(*row)


SHOW = f"SELECT {COLUMNS} FROM wallets WHERE organization_id = $1"
ACCOUNT = """
SELECT currency FROM whatsapp_accounts WHERE organization_id = $1 AND state <> 'removed' ORDER BY id LIMIT 1
"""


async def show(conn: Connection, actor: Actor) -> Wallet:
    """The organization's wallet; an empty one if it has none. One that was never used is in the currency that it would
    take: setting an alert may have created it before there was an account."""
    row = await conn.fetchrow(SHOW, actor.organization_id)
    if row is None:
        return Wallet(await conn.fetchval(ACCOUNT, actor.organization_id), 0, 0, 0, 0, None)
    known = Wallet(*row)
    if known.available or known.reserved or known.consumed:
        return known
    return msgspec.structs.replace(known, currency=await first_currency(conn, actor) or known.currency)


async def first_currency(conn: Connection, actor: Actor) -> str | None:
    """The currency that a wallet never used takes with its first change unless one is given: that of the organization's
    first account; "" without one. None: the wallet is in use, and its currency cannot change."""
    if await conn.fetchval(USED, actor.organization_id):
        return None
    return await conn.fetchval(ACCOUNT, actor.organization_id) or ""


SET_ALERT = f"UPDATE wallets SET alert_below = $2::bigint WHERE organization_id = $1 RETURNING {COLUMNS}"


async def set_alert(
    conn: Connection, organization_id: UUID, *, below: int | None, by: Actor | Principal = SYSTEM
) -> Wallet:
    """Warn when less than `below` millionths are available; None: stop warning. Raises Invalid, NotFound."""
    if below is not None and not 0 <= below <= MOST:
        raise Invalid(("amount", "range", "`amount` must be from 0 to 1,000,000,000"))
    at = clock.now()
    async with conn.transaction():
        await organizations.get(conn, id=organization_id)
        await conn.execute(ENSURE, organization_id, None, DEFAULT_CURRENCY, at)
        held = await conn.fetchrow(HELD, organization_id)
        changed = await conn.fetchrow(SET_ALERT, organization_id, below)
        assert held is not None
        assert changed is not None
        known, after = Wallet(*held), Wallet(*changed)
        await audit.record(
            conn,
            by,
            "wallet.alert_changed",
            object_id=organization_id,
            organization_id=organization_id,
            before={"below": None if known.alert_below is None else decimal(known.alert_below)},
            after={"below": None if below is None else decimal(below), "currency": after.currency},
        )
    return after


LEDGER = """
SELECT * FROM (
    (SELECT id, movement, NULL::uuid AS message_id, '' AS key, available, 0 AS reserved, 0 AS consumed, reason,
            created_at
       FROM wallet_ledger WHERE organization_id = $1 AND id < $3 ORDER BY id DESC LIMIT $2)
    UNION ALL
    (SELECT id, movement, message_id, key, available, reserved, consumed, NULL, created_at
       FROM wallet_movements WHERE organization_id = $1 AND id < $3 ORDER BY id DESC LIMIT $2)
    UNION ALL
    SELECT id, 'month', NULL, '', available, reserved, consumed, reason, created_at
      FROM wallet_sums WHERE organization_id = $1 AND id < $3) entry
 ORDER BY id DESC LIMIT $2
"""
_LAST = UUID(int=2**128 - 1)


async def ledger(conn: Connection, actor: Actor, *, limit: int = 50, after: UUID | None = None) -> list[Entry]:
    """The wallet's changes older than `after`, newest first; one entry for each month whose messages are gone."""
    return [Entry(*row) for row in await conn.fetch(LEDGER, actor.organization_id, limit, after or _LAST)]


class Day(msgspec.Struct, frozen=True):
    """The amount consumed in one category on one day, in millionths, and the number of messages charged."""

    day: date
    #: A billing category; empty: the messages had none.
    category: str
    messages: int
    consumed: int


DAYS = """
SELECT day, category, messages, consumed FROM wallet_days
 WHERE organization_id = $1 AND day >= $2 AND day < $3 ORDER BY day, category LIMIT 10000
"""


async def days(conn: Connection, actor: Actor, *, since: date, until: date) -> list[Day]:
    """Consumption by day (UTC) and category, from `since` until before `until`; days without any are left out."""
    return [Day(*row) for row in await conn.fetch(DAYS, actor.organization_id, since, until)]


class Reservations(msgspec.Struct, frozen=True):
    """Reservations for messages in transit, among the latest messages examined.

    `amount`: less than the wallet's if older messages hold the rest. `until`: when the last of them is released if
    nothing is reported.
    """

    amount: int
    messages: int
    since: datetime | None
    until: datetime | None


#: The number of latest messages examined for reservations.
LOOK = 5_000
RESERVED = """
SELECT coalesce(sum(reserved), 0)::bigint AS amount, count(*) AS messages, min(accepted_at) AS since,
       max(deadline_at) AS until
  FROM (SELECT reserved, accepted_at, deadline_at, charge FROM whatsapp_messages
         WHERE organization_id = $1 ORDER BY id DESC LIMIT $2) latest
 WHERE charge = 'reserved'
"""


async def reserved(conn: Connection, actor: Actor) -> Reservations:
    """The current reservations: amount, since when, and until when."""
    row = await conn.fetchrow(RESERVED, actor.organization_id, LOOK)
    assert row is not None
    return Reservations(*row)
