"""What a mail server has taken is recorded, and what was taken from the outbox is sent, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.ids import uuid7
from heliograph.base.network.smtp import Mail
from heliograph.base.process.settings import Settings
from heliograph.mail import outbox, work
from heliograph.mail.outbox import ClaimedMail
from heliograph.mail.work import MailWork
from tests.mailbox import Mailbox, listening
from tests.rules.factories import organization
from tests.wire import wired_pool

#: Longer than anything here takes.
LONG = 60.0


def settings(port: int) -> Settings:
    return Settings(
        secret_key="a secret key for tests, long enough",
        smtp_url=f"smtp://127.0.0.1:{port}",
        mail_from="Acme <no-reply@example.com>",
        public_url="https://sms.example.com",
    )


async def queue(pool: Pool, configured: Settings) -> None:
    """A mail that is due."""
    box = outbox.of(configured)
    assert box is not None
    actor = await organization(pool)
    mail = Mail("ana@example.com", "News", "A text.\n")
    async with pool.acquire() as conn:
        within = timedelta(hours=1)
        assert await outbox.put_many(conn, box, [(actor.organization_id, uuid7(), mail)], kind="notices", within=within)


async def test_a_mail_that_was_taken_is_recorded_once_the_database_is_back(pool: Pool, database_url: str) -> None:
    """Otherwise it would be sent again."""
    async with listening(Mailbox()) as mailbox, wired_pool(database_url) as (line, weak):
        configured = settings(mailbox.port)
        await queue(pool, configured)
        work = MailWork(weak, configured, {})
        try:
            line.end_at(b"SET state = 'sent'")
            assert await work.round() == 1
            assert await pool.fetchval("SELECT state FROM mails") == "sent"
            await pool.execute("UPDATE mails SET due_at = now()")
            assert await work.round() == 0
            assert len(mailbox.mails) == 1
        finally:
            await work.close()


async def test_a_stop_waits_for_mails_that_were_just_taken(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nobody would have them until their lease ends."""
    taken, goes_on = asyncio.Event(), asyncio.Event()
    original = outbox.take

    async def slow(conn: Connection) -> list[ClaimedMail]:
        found = await original(conn)
        taken.set()
        await goes_on.wait()
        return found

    monkeypatch.setattr(outbox, "take", slow)
    async with listening(Mailbox()) as mailbox:
        configured = settings(mailbox.port)
        await queue(pool, configured)
        work = MailWork(pool, configured, {})
        round = asyncio.create_task(work.round())

        async def end() -> None:
            """As the worker does."""
            await work.stop(grace=LONG)
            round.cancel()
            await asyncio.gather(round, return_exceptions=True)
            await work.close()

        async with asyncio.timeout(LONG):
            await taken.wait()
            ending = asyncio.create_task(end())
            await asyncio.sleep(0.1)
            goes_on.set()
            await ending
        assert len(mailbox.mails) == 1
    assert await pool.fetchval("SELECT state FROM mails") == "sent"


async def test_a_mail_that_is_being_sent_is_not_sent_again_because_the_clock_was_set_forward(pool: Pool) -> None:
    """Its lease ended early, and another worker took it."""

    def set_forward(seconds: float, *, ago: float = 0.0) -> None:
        """As of so many seconds ago."""
        own, asked = clock.reading()
        asked -= int(ago * 1e9)
        for at in (clock.now() - timedelta(seconds=seconds + ago), clock.now() - timedelta(seconds=ago)):
            clock.note(at, own=own, asked=asked, answered=asked)

    configured = settings(1)
    await queue(pool, configured)
    async with pool.acquire() as conn:
        try:
            (taken,) = await outbox.take(conn)
            await conn.execute("UPDATE mails SET due_at = now()")
            set_forward(3600)
            await queue(pool, configured)
            # What nobody has taken yet is sent.
            assert [one.id == taken.id for one in await outbox.take(conn)] == [False]
            await conn.execute("UPDATE mails SET due_at = now() WHERE id = $1", taken.id)
            set_forward(3600, ago=outbox.LEASE.total_seconds() + 1)
            assert [(one.id, one.attempts) for one in await outbox.take(conn)] == [(taken.id, 2)]
        finally:
            clock.arm("")


async def test_a_worker_that_stood_still_leaves_its_mails_to_others(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker sends them by then, and they arrived twice."""
    times = itertools.chain([0.0], itertools.repeat(outbox.LEASE.total_seconds()))
    monkeypatch.setattr(work, "monotonic", lambda: next(times))
    async with listening(Mailbox()) as mailbox:
        configured = settings(mailbox.port)
        await queue(pool, configured)
        stood_still = MailWork(pool, configured, {})
        assert await stood_still.round() == 1
        await stood_still.close()
        assert mailbox.mails == []
    assert await pool.fetchval("SELECT state FROM mails") == "waiting"
