"""The work of mails: a worker takes those that are due and hands them to the SMTP server.

The rule nobody may break: no log reveals a mail's recipient or content.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic

import structlog

from heliograph.base.crypto import Unsealable
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.network import smtp
from heliograph.base.network.smtp import Mailer, MailNotSent
from heliograph.base.process.settings import Settings
from heliograph.mail import outbox
from heliograph.mail.outbox import ClaimedMail, Outbox
from heliograph.queue.runner import once
from heliograph.queue.work import Loop, Work

log = structlog.get_logger()

#: Handles a request, a row in the outbox that is not a mail yet: (connection, outbox, content), in a transaction.
Answers = Callable[[Connection, Outbox, bytes], Awaitable[None]]


def sender_of(settings: Settings) -> Mailer | None:
    """The sender of an installation; None: it sends no mails."""
    if not settings.smtp_url:
        return None
    return Mailer(smtp.parse(settings.smtp_url), smtp.parse_sender(settings.mail_from))


class MailWork(Work):
    """The mails processed by one worker. Without an SMTP server it only gives up those past their deadline."""

    def __init__(self, pool: Pool, settings: Settings, answers: Mapping[str, Answers]) -> None:
        """`answers`: handlers of requests, by kind."""
        self._pool = pool
        self._answers = answers
        self._key = outbox.seal_key(settings)
        self._outbox = outbox.of(settings)
        self._sender = sender_of(settings)
        self._wake = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        #: Held during a round.
        self._in_round = asyncio.Lock()
        self._is_stopping = False

    def loops(self) -> Sequence[Loop]:
        when = outbox.LATE if self._sender is None else outbox.DUE
        return (Loop("mails", self.round, self._wake, when=when),)

    async def round(self) -> int:
        """Send what is due; returns how many mails were taken."""
        async with self._in_round:
            return await self._round()

    async def _round(self) -> int:
        async with self._pool.acquire() as conn:
            for id, kind, reason in await outbox.give_up(conn):
                log.error("mail given up", mail_id=str(id), kind=kind, reason=reason)
            if self._sender is None or self._is_stopping:
                return 0
            began = monotonic()
            taken = await outbox.take(conn)
        # Separate tasks: what the server has accepted is recorded even if this loop is cancelled meanwhile.
        tasks = {asyncio.create_task(self._one(one, began)) for one in taken}
        for task in tasks:
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            task.result()
        return len(taken)

    async def stop(self, *, grace: float) -> None:
        # A round that has just taken mails sends them: cancelled before that, they would wait until its lease ends.
        self._is_stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace), self._in_round:
                return

    async def close(self) -> None:
        for task in self._open:
            task.cancel()
        if self._sender is not None:
            self._sender.close()

    async def _one(self, taken: ClaimedMail, began: float) -> None:
        try:
            if taken.kind in self._answers:
                await self._answer(taken)
            else:
                await self._send(taken, began)
        except Unsealable:
            log.error("mail cannot be decrypted; was HELIOGRAPH_SECRET_KEY changed?", mail_id=str(taken.id))
            async with self._pool.acquire() as conn:
                await outbox.failed(conn, taken, reason="unreadable")

    async def _answer(self, taken: ClaimedMail) -> None:
        assert self._outbox is not None
        content = outbox.content(self._key, taken)
        async with self._pool.acquire() as conn, conn.transaction():
            if await outbox.delete(conn, taken):
                await self._answers[taken.kind](conn, self._outbox, content)

    async def _send(self, taken: ClaimedMail, began: float) -> None:
        """`began`: before it was taken; monotonic seconds."""
        assert self._sender is not None
        # If this process has stood still, another worker may be sending it.
        lasts = outbox.LEASE.total_seconds() - smtp.DEADLINE
        try:
            mail = outbox.opened(self._key, taken)
            await self._sender.send(mail, id=str(taken.id), wanted=lambda: monotonic() - began < lasts)
        except MailNotSent as error:
            code = error.said[:3] if error.said[:3].isdigit() else ""
            said = {"mail_id": str(taken.id), "kind": taken.kind, "reason": error.reason, "code": code}
            if error.is_final:
                log.error("mail refused", **said)
                await self._record(partial(outbox.failed, taken=taken, reason=error.reason))
            else:
                log.warning("mail not sent, trying again", **said, attempts=taken.attempts)
                await self._record(partial(outbox.retry, taken=taken, reason=error.reason))
            return
        await self._record(partial(outbox.sent, taken=taken))

    async def _record(self, write: Callable[[Connection], Awaitable[None]]) -> None:
        """Record what the server said, which only this process knows: while the database is unavailable, it is tried
        again until the lease is over, when the mail is sent again."""

        async def record() -> None:
            async with self._pool.acquire() as conn:
                await write(conn)

        async with asyncio.timeout(outbox.LEASE.total_seconds()):
            await once("record mail", record, stopping=asyncio.Event())
