"""A test message through a supplier in use, followed through answer and receipt alongside its workers.

Its session is a transmitter, so it receives no receipts: those of the test message go to a worker, or to the callback
address, match nothing and are read from the table. Only its progress is stored, with its number masked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.crypto import Key
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.sentences import decoded, encoded, sentence
from heliograph.sms.dispatch import suppliers
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.management import changing, drafts, following, long_messages
from heliograph.sms.management.drafts import Trial
from heliograph.sms.management.following import Followed, Told, TrialReceipt
from heliograph.sms.reports.keys import same_end, suffix, suffix_of
from heliograph.suppliers import kinds, trial
from heliograph.suppliers.contract import Account, Submission, Verdict

#: Seconds between checks for its receipts, and seconds to wait for them.
LOOK, WAIT = 0.5, 120.0
#: Maximum number of receipts kept.
MOST = 20

FreshReceipts = Callable[[tuple[str, ...]], Awaitable[list[TrialReceipt]]]

READ = "SELECT trial::text FROM suppliers WHERE id = $1 AND state <> 'removed'"
HELD = f"{READ} FOR NO KEY UPDATE"
START = "UPDATE suppliers SET trial = $2::text::jsonb WHERE id = $1"
# Nothing, if it was forgotten meanwhile: as `drafts.FOLLOWED`.
KEEP = """
UPDATE suppliers SET trial = $2::text::jsonb WHERE id = $1 AND trial -> 'until' = $2::text::jsonb -> 'until'
"""
FORGET = "UPDATE suppliers SET trial = NULL WHERE id = $1"
NOW = "SELECT now()"
# Unmatched receipts, found by the handset's number, whatever base their ids are written in.
FITS = same_end("$3", suffix_of("recipient"))
RECEIPTS = f"""
SELECT keys, state, error, submitted, delivered FROM receipts
 WHERE message_id IS NULL AND supplier_id = $1 AND received_at >= $2 AND ({FITS} OR keys && $4)
 ORDER BY received_at LIMIT {MOST}
"""


async def last(conn: Connection, *, supplier_id: UUID, is_held: bool = False) -> Trial | None:
    """The progress of a supplier's last test message; None: there was none. Raises NotFound. `is_held`: nobody else
    starts one before the caller's transaction ends."""
    row = await conn.fetchrow(HELD if is_held else READ, supplier_id)
    if row is None:
        raise NotFound("There is no such supplier.")
    return None if row["trial"] is None else decoded(row["trial"], Trial)


async def start(conn: Connection, one: Trial, *, supplier_id: UUID) -> None:
    """Save that it is sent, in the transaction that holds the last one."""
    await conn.execute(START, supplier_id, encoded(one))


async def keep(conn: Connection, one: Trial, *, supplier_id: UUID) -> None:
    """Save its progress, unless it is no longer the last one."""
    await conn.execute(KEEP, supplier_id, encoded(one))


async def forget(conn: Connection, *, supplier_id: UUID) -> None:
    """Forget a test message that was sent with a setting that has since changed."""
    await conn.execute(FORGET, supplier_id)


async def begins(conn: Connection) -> datetime:
    """The earliest time at which its receipts can arrive."""
    at: datetime = await conn.fetchval(NOW)
    return at


async def demand_session(conn: Connection, supplier: Supplier) -> None:
    """Raises Invalid (`session`) if workers hold all sessions configured for an SMPP account."""
    leased = (await suppliers.sessions(conn)).get(supplier.id, suppliers.UNHELD)[0]
    if supplier.kind == kinds.SMPP and leased >= supplier.sessions:
        raise Invalid(("session", "taken", "Workers hold all of its sessions. Bind one more, or pause it first."))


async def list_receipts(
    conn: Connection, supplier: Supplier, message: Submission, ids: tuple[str, ...], *, since: datetime
) -> list[TrialReceipt]:
    """Receipts for the handset of a test message since it was sent, oldest first. `ids`: those in its answer."""
    rows = await conn.fetch(RECEIPTS, supplier.id, since, suffix(message.to), list(ids))
    return [
        TrialReceipt(
            tuple(row["keys"]),
            row["state"],
            row["error"],
            any(key in ids for key in row["keys"]),
            following.counted(row["submitted"], row["delivered"]),
        )
        for row in rows
    ]


async def follow(
    supplier: Supplier,
    account: Account,
    message: Submission,
    told: Told,
    receipts: FreshReceipts,
    *,
    wait: float = WAIT,
    rest: float = following.REST,
) -> Followed:
    """Send it and wait for its receipt, reporting each step. `receipts`: returns its receipts so far, given the
    answer's ids.

    For a message with several parts, the wait continues for `rest` seconds after each receipt. Raises SettingsError
    (names the field).
    """
    await told(Followed(phase="connecting"))
    done = await trial.attempt(supplier.kind, account, message)
    if done.outcome is None:
        return Followed(phase="done", detail=sentence(done.error), note="unreached")
    if done.outcome.verdict is not Verdict.ACCEPTED:
        return following.answered(done.outcome, phase="done", note="refused")
    found = following.answered(done.outcome, phase="answered")
    await told(found)
    loop = asyncio.get_running_loop()
    end = until = loop.time() + wait
    while True:
        known = tuple(await receipts(found.ids))
        if known != found.receipts:
            found = following.checked(account, found, known)
            await told(found)
            if any(one.is_final for one in known):
                until = min(end, loop.time() + rest)
        if following.is_whole(found):
            return msgspec.structs.replace(found, phase="done")
        if loop.time() >= until:
            return msgspec.structs.replace(found, phase="done", note="" if known else "silent")
        await asyncio.sleep(LOOK)


async def cure(conn: Connection, key: Key, *, supplier_id: UUID, by: Principal = SYSTEM) -> bool:
    """Apply the settings that make the ids in the last test message's answer and receipt match; False: nothing to
    change.

    Workers follow within a second, and unmatched receipts are read again. Raises NotFound, Invalid.
    """
    async with conn.transaction():
        one = await last(conn, supplier_id=supplier_id)
        if one is None or not one.followed.cure:
            return False
        await _with_settings(conn, key, supplier_id, by, one.followed.cure)
        await keep(conn, drafts.with_ids_fixed(one), supplier_id=supplier_id)
    return True


async def arrived(conn: Connection, *, supplier_id: UUID, how: str) -> None:
    """Record how the last long message arrived on the handset: "joined", "apart" or "cut"."""
    one = drafts.long_ended(await last(conn, supplier_id=supplier_id))
    if one is not None:
        await keep(conn, msgspec.structs.replace(one, arrived=how), supplier_id=supplier_id)


async def decide(conn: Connection, key: Key, *, supplier_id: UUID, by: Principal = SYSTEM) -> bool:
    """Set `parts` to the value that fits the receipts of the last long message; False: nothing to change.

    Raises NotFound, Invalid.
    """
    async with conn.transaction():
        one = drafts.long_ended(await last(conn, supplier_id=supplier_id))
        before = await suppliers.lock(conn, supplier=str(supplier_id))
        parts = long_messages.reported(one.followed, before.parts).parts if one is not None else ""
        if not parts:
            return False
        await _change(conn, key, supplier_id, by, lambda one: msgspec.structs.replace(one, parts=parts))
    return True


async def join(conn: Connection, key: Key, *, supplier_id: UUID, by: Principal = SYSTEM) -> bool:
    """Switch to the next way of joining parts, and forget the last message, which no longer applies; False: nothing to
    change. Raises NotFound, Invalid."""
    async with conn.transaction():
        one = drafts.long_ended(await last(conn, supplier_id=supplier_id))
        before = await suppliers.lock(conn, supplier=str(supplier_id))
        way = long_messages.joining(before.kind, before.settings, one.arrived) if one is not None else ""
        if not way:
            return False
        await _with_settings(conn, key, supplier_id, by, {"long_messages": way})
        await forget(conn, supplier_id=supplier_id)
    return True


async def _with_settings(
    conn: Connection, key: Key, supplier_id: UUID, by: Principal, settings: Mapping[str, str]
) -> None:
    await _change(
        conn, key, supplier_id, by, lambda one: msgspec.structs.replace(one, settings=one.settings | dict(settings))
    )


async def _change(
    conn: Connection, key: Key, supplier_id: UUID, by: Principal, changed: Callable[[Supplier], Supplier]
) -> None:
    await changing.change(conn, key, supplier=str(supplier_id), wanted=lambda one: (changed(one), {}), by=by)
