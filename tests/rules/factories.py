"""Factories for tests of the rules: organizations, messages in any state, suppliers that follow a script."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.queue.leases import UNROUTED
from heliograph.sending.listing import shown_status
from heliograph.sms.accepting.accept import Send
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.messages import SENDING
from heliograph.sms.reports import parts
from heliograph.sms.reports.keys import PartId, suffix
from heliograph.suppliers.contract import (
    Health,
    OnOutcome,
    OnReceipts,
    Outcome,
    Part,
    Receipt,
    ReceiptState,
    Submission,
    Verdict,
)

#: The default sender of every organization made here.
SENDER = "HELIOGRAPH"
TO = "+258841234567"


async def quiet_now(pool: Pool, actor: Actor, zone: str = "Africa/Maputo") -> datetime:
    """Give an organization quiet hours that began an hour ago in its recipients' time zone; returns their end."""
    at = (await pool.fetchval("SELECT now()")).astimezone(ZoneInfo(zone)).replace(second=0, microsecond=0)
    begin, end = at - timedelta(hours=1), at + timedelta(hours=2)
    await pool.execute(
        "UPDATE organizations SET quiet_hours = $2 WHERE id = $1",
        actor.organization_id,
        f"{begin:%H:%M}-{end:%H:%M}",
    )
    return end


async def organization(pool: Pool, *, quota: int = 1000, state: str = "active", **actor: Any) -> Actor:
    """An organization with an approved default sender, and a quota that agrees with its ledger."""
    id = uuid7()
    at = clock.now()
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute(
            "INSERT INTO organizations (id, name, state, created_at) VALUES ($1, 'Acme ' || $1::uuid, $2, $3)",
            id,
            state,
            at,
        )
        await conn.execute("INSERT INTO quotas (organization_id, total) VALUES ($1, $2)", id, quota)
        await conn.execute(
            "INSERT INTO usage_ledger (organization_id, id, type, channel, quantity, balance_after, created_at)"
            " VALUES ($1, $2, 'grant', 'sms', $3, $3, $4)",
            id,
            uuid7(),
            quota,
            at,
        )
    made = Actor(
        **{
            "organization_id": id,
            "key_id": None,
            "mode": "live",
            "scopes": frozenset({"sms:send"}),
            "state": state,
            **actor,
        }
    )
    await sender(pool, made, SENDER, default=True)
    return made


async def sender(
    pool: Pool, actor: Actor, value: str, *, status: str = "approved", default: bool = False, reason: str | None = None
) -> UUID:
    """A sender ID in some state; returns its id."""
    id = uuid7()
    await pool.execute(
        "INSERT INTO sender_ids (organization_id, id, value, status, is_default, rejection_reason, created_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, now())",
        actor.organization_id,
        id,
        value,
        status,
        default,
        reason,
    )
    return id


def key(name: str) -> UUID:
    """An idempotency key as the API passes it on."""
    return UUID(bytes=hashlib.sha256(name.encode()).digest()[:16])


def send(actor: Actor, text: str = "hello", *, key_name: str | None = None, **values: Any) -> Send:
    """A message to accept; `key_name`: its idempotency key. The payload's hash covers recipient and text."""
    to = values.setdefault("to", TO)
    if key_name is not None:
        values.setdefault("key_hash", key(key_name))
        values.setdefault("request_hash", hashlib.sha256(f"{to}|{text}".encode()).digest())
    return Send(actor=actor, text=text, request_id=values.pop("request_id", "req"), **values)


async def message(
    pool: Pool,
    actor: Actor,
    *,
    status: str = "accepted",
    to: str = TO,
    text: str | None = "hello",
    segments: int = 1,
    encoding: str = "gsm7",
    guarantee: str = "at_least_once",
    mode: str = "live",
    lane: int = 0,
    line: UUID = UUID(int=0),
    age: timedelta = timedelta(0),
    expires_at: datetime | None = None,
    queued: bool = True,
    traffic_class: str = "transactional",
) -> UUID:
    """Store a message that is `age` old, and its queue row; returns its id. With the status `sending`, its row says
    `accepted`."""
    id = uuid7()
    status = "accepted" if status == SENDING else status
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute(
            "INSERT INTO messages (organization_id, id, status, mode, recipient, sender, sender_id, encoding, segments,"
            " guarantee, request_id, accepted_at, expires_at, country, body, class, balance_after)"
            " SELECT $1, $2, $3::text, $4::text, $5, $6, s.id, $7::text, $8, $9::text, 'req', now() - $10::interval,"
            " $11, 'MZ', $12, $13::text, 0 FROM sender_ids s WHERE organization_id = $1 AND value = $6",
            actor.organization_id,
            id,
            status,
            mode,
            to,
            SENDER,
            encoding,
            segments,
            guarantee,
            age,
            expires_at,
            text,
            traffic_class,
        )
        if mode == "live":  # paid for by a grant of its own, so that the ledger adds up
            await conn.execute(
                "WITH paid AS (UPDATE quotas SET total = total + 1, used = used + 1 WHERE organization_id = $1)"
                " INSERT INTO usage_ledger (organization_id, id, type, channel, quantity, balance_after, created_at)"
                " VALUES ($1, $2, 'grant', 'sms', 1, 1, now())",
                actor.organization_id,
                uuid7(),
            )
        if queued:
            await conn.execute(
                "INSERT INTO queue (kind, line, lane, organization_id, due_at, id)"
                " VALUES ('sms', $1, $2, $3, now(), $4)",
                line,
                lane,
                actor.organization_id,
                id,
            )
    return id


async def sent(
    pool: Pool,
    actor: Actor,
    supplier_id: UUID,
    *ids: str,
    to: str = TO,
    status: str = "sent",
    age: timedelta = timedelta(0),
) -> UUID:
    """Store a message that a supplier accepted `age` ago, with a part for each of its `ids`; returns the message's
    id."""
    id = await message(pool, actor, to=to, status=status, segments=max(1, len(ids)), queued=False, age=age)
    await pool.execute(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at, parts,"
        " supplier_message_id, recipient_suffix)"
        " VALUES ($1, $2, 1, $3, 'accepted', now() - $4::interval, now() - $4::interval, $5, $6, $7)",
        *(
            actor.organization_id,
            id,
            supplier_id,
            age,
            max(1, len(ids)),
            ids[0] if len(ids) == 1 else None,
            suffix(to[1:]),
        ),
    )
    if len(ids) > 1:
        at = clock.now() - age
        ends = actor.organization_id, suffix(to[1:])
        async with pool.acquire() as conn:
            made = [PartId(supplier_id, key, id, 1, part, len(ids), *ends) for part, key in enumerate(ids, 1)]
            await parts.keep(conn, made, at)
    return id


async def endpoint(pool: Pool, actor: Actor, *kinds: str, status: str = "active") -> UUID:
    """A webhook endpoint of the actor's mode, subscribed to `kinds`."""
    id = uuid7()
    await pool.execute(
        "INSERT INTO webhook_endpoints (organization_id, id, url, subscribed_events, status, secret, created_at, mode)"
        " VALUES ($1, $2, 'https://example.com/', $3, $4, '', now(), $5)",
        actor.organization_id,
        id,
        list(kinds),
        status,
        actor.mode,
    )
    return id


async def status_of(pool: Pool, id: UUID) -> str:
    """The public status of a message."""
    status: str = await pool.fetchval(f"SELECT {shown_status('m', SENDING)} FROM messages m WHERE id = $1", id)
    return status


async def tried(pool: Pool, id: UUID) -> None:
    """Record an attempt of unknown outcome for a queued message."""
    await pool.execute("UPDATE queue SET attempt = 1 WHERE id = $1", id)
    await pool.execute(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
        " SELECT organization_id, id, 1, id, 'unknown', now(), now() FROM queue WHERE id = $1",
        id,
    )


async def events_of(pool: Pool, id: UUID) -> list[str]:
    """Kinds of the events that a message has raised, in order."""
    return [row["kind"] for row in await pool.fetch("SELECT kind FROM events WHERE message_id = $1 ORDER BY id", id)]


def receipt(
    *keys: str, state: ReceiptState = ReceiptState.DELIVERED, to: str = TO, raw: bytes = b"", **values: Any
) -> Receipt:
    """A receipt as a connector delivers it."""
    raw = raw or f"{keys}{state}".encode()
    return Receipt(keys=keys, state=state, recipient=to.removeprefix("+"), sender=SENDER, raw=raw, **values)


def supplier(name: str = "one", **values: Any) -> Supplier:
    """A supplier's row, not stored."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Supplier(
        **{
            "id": uuid7(),
            "name": name,
            "kind": "smpp",
            "settings": {},
            "secret": b"",
            "state": "active",
            "prefixes": (),
            "priority": 10,
            "weight": 1,
            "sessions": 1,
            "parts": "all",
            "simulated": False,
            "created_at": at,
            "changed_at": at,
            **values,
        }
    )


def accepted(*ids: str | None) -> Outcome:
    """The supplier accepted it, with an id for each segment."""
    return Outcome(Verdict.ACCEPTED, tuple(Part(number, id) for number, id in enumerate(ids, 1)))


def accept_all(submission: Submission) -> Outcome:
    """The supplier accepts everything; ids are made of the message's id and the segment's number."""
    numbers = [n for n in range(1, len(submission.segments) + 1) if n not in submission.held]
    return Outcome(Verdict.ACCEPTED, tuple(Part(n, f"{submission.message_id}-{n}") for n in numbers))


class Scripted:
    """A supplier's connector that follows a script. Implements `suppliers.contract.Connector`."""

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.sessions = 1
        self.submitted: list[Submission] = []
        self.stopped = False
        self.started = False
        #: Sessions that are still open, although fewer are wanted.
        self.lingering = 0
        self.may_stop = asyncio.Event()
        self.may_stop.set()
        #: How many of its sessions receive; None: all.
        self.receiving: int | None = None
        #: What it reports about throttling, and the pauses that other workers' throttling requested of it.
        self.throttles = 0
        self.pause = 0.0
        self.slowed: list[float] = []
        #: Called with each submission; returns the outcome, or None for none yet.
        self.script: Callable[[Submission], Outcome | None] = accept_all
        self.on_outcome: OnOutcome = lambda submission, outcome: None
        self.on_receipts: OnReceipts | None = None

    async def start(self) -> None:
        self.started = True

    def ready(self) -> bool:
        return max(self.sessions, self.lingering) > 0

    def capacity(self) -> int:
        return self.room

    def parts(self, submission: Submission) -> int:
        return len(submission.segments)

    def billed(self, submission: Submission) -> int:
        return submission.count

    def submit(self, submission: Submission) -> None:
        self.submitted.append(submission)
        outcome = self.script(submission)
        if outcome is not None:
            asyncio.get_running_loop().call_soon(self.on_outcome, submission, outcome)

    def set_sessions(self, count: int) -> None:
        self.sessions = count

    def slow(self, pause: float) -> None:
        self.slowed.append(pause)

    def health(self) -> Health:
        sessions = max(self.sessions, self.lingering)
        return Health(sessions, 0, throttles=self.throttles, pause=self.pause, receiving=self.receiving)

    async def stop(self, *, grace: float) -> None:
        await self.may_stop.wait()
        self.stopped = True


async def until(condition: Callable[[], bool], *, seconds: float = 120.0) -> None:
    """Wait for a condition in this process."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "it did not come true in time"
        await asyncio.sleep(0.005)


async def blocked(pool: Pool, *, kill: bool = False) -> None:
    """Wait until a statement in this database waits for a lock; with `kill`, end its connection."""
    what = "pg_terminate_backend(pid)" if kill else "true"
    for _ in range(6_000):
        if await pool.fetch(
            f"SELECT {what} FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND datname = current_database() AND wait_event_type = 'Lock'"
        ):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits for a lock")


def losing_deadlocks(table: str, *, times: int, on: str = "INSERT OR UPDATE OR DELETE") -> str:
    """For the owner: the next changes of a table's rows are rolled back like those of the victim of a deadlock."""
    return f"""
        CREATE SEQUENCE lost;
        CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
            IF nextval('lost') <= {times} THEN RAISE 'deadlock detected' USING ERRCODE = 'deadlock_detected'; END IF;
            RETURN coalesce(new, old);
        END$$;
        CREATE TRIGGER lose BEFORE {on} ON {table} FOR EACH ROW EXECUTE FUNCTION lose();
        GRANT SELECT, USAGE ON SEQUENCE lost TO PUBLIC
    """


async def check_ledger(pool: Pool, organizations: Iterable[UUID], *, gone: Mapping[UUID, int] | None = None) -> None:
    """The ledger's sum is the remaining quota, it was never negative, and each live message is in it once; `gone`:
    messages that have become part of a sum."""
    for id in organizations:
        total, used = await pool.fetchrow("SELECT total, used FROM quotas WHERE organization_id = $1", id)
        sums = await pool.fetchrow(
            "SELECT sum(quantity) AS booked, min(balance_after) AS lowest,"
            "       coalesce(-sum(quantity) FILTER (WHERE type = 'usage'), 0) AS uses,"
            "       count(*) FILTER (WHERE type = 'refund') AS refunds,"
            "       count(DISTINCT message_id) FILTER (WHERE type = 'refund') AS refunded"
            "  FROM usage_entries WHERE organization_id = $1",
            id,
        )
        spent = await pool.fetchval("SELECT count(*) FROM messages WHERE organization_id = $1 AND mode = 'live'", id)
        assert 0 <= used <= total
        assert total - used == sums["booked"]
        assert sums["lowest"] >= 0
        assert (sums["uses"], sums["refunds"]) == (spent + (gone or {}).get(id, 0), sums["refunded"])


async def check_books(pool: Pool, organizations: Iterable[UUID]) -> None:
    """Quota is never negative, the ledger's sum is what remains, and each live message cost one."""
    for id in organizations:
        total, used = await pool.fetchrow("SELECT total, used FROM quotas WHERE organization_id = $1", id)
        spent = await pool.fetchval("SELECT count(*) FROM messages WHERE organization_id = $1 AND mode = 'live'", id)
        booked = await pool.fetchval("SELECT sum(quantity) FROM usage_entries WHERE organization_id = $1", id)
        lowest = await pool.fetchval("SELECT min(balance_after) FROM usage_entries WHERE organization_id = $1", id)
        assert total - used == booked
        assert used == spent <= total
        assert lowest >= 0


#: For tests that write traffic themselves, without the folding that would have summed it.
SUM_DAYS = """
INSERT INTO traffic_days AS known (organization_id, day, channel, mode, country, sender, status, count, segments,
                                   to_sent, to_delivered)
SELECT organization_id, (hour AT TIME ZONE 'UTC')::date, channel, mode, country, sender, status, sum(count)::bigint,
       sum(segments)::bigint, histogram_sum(to_sent), histogram_sum(to_delivered)
  FROM traffic GROUP BY 1, 2, 3, 4, 5, 6, 7
    ON CONFLICT (organization_id, day, channel, mode, country, sender, status) DO UPDATE
   SET count = excluded.count, segments = excluded.segments, to_sent = excluded.to_sent,
       to_delivered = excluded.to_delivered
"""


# A queue that is longer than any sample of it.
LONG_QUEUE = """
INSERT INTO queue (kind, line, organization_id, due_at, id)
SELECT 'sms', $1, $2::uuid, now(), overlay($2::uuid::text placing lpad(to_hex(n), 8, '0') from 1)::uuid
  FROM generate_series(1, $3::int) AS n
"""


async def long_queue(pool: Pool, organization_id: UUID, count: int, *, line: UUID = UNROUTED) -> None:
    """Queue this many rows of one organization in one line."""
    await pool.execute(LONG_QUEUE, line, organization_id, count)
