"""Look-ups by a worker: which messages wait for one, and the queries to suppliers.

The rule nobody may break: if no route names a network of the recipient's country, nothing is looked up and no message
waits. Numbers are looked up for their network alone; what the supplier says about a handset is not stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from uuid import UUID

import structlog

from heliograph.base.crypto import Key, Unsealable
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Invalid
from heliograph.networks import asked, learned, plan
from heliograph.networks.directory import Directory
from heliograph.networks.learned import LOOKUP, LearnedNetwork, network_of
from heliograph.queue import timers
from heliograph.queue.runner import once
from heliograph.routes.lookup import Route
from heliograph.sms.dispatch.claimed import ClaimedMessage
from heliograph.sms.lookups import accounts
from heliograph.sms.lookups.accounts import Account
from heliograph.suppliers.lookups.kinds import LookupClient

log = structlog.get_logger()

#: Seconds after which a message that waits for a look-up is examined again.
STEP = 0.25
#: Seconds between two tries to store an answer whose row is locked.
LOCKED_PAUSE = 2.0
#: Seconds within which a request begins once its numbers were taken, and for which its answers are tried to be stored
#: while the database is unavailable, and then while rows are locked. With the longest time for an answer, a minute, all
#: of this ends before another worker may ask for the numbers again (`asked.TAKEN`).
BEGIN, STORE = 60.0, 120.0


def countries(routes: Collection[Route]) -> set[str]:
    """ISO regions in which a number's network affects its route."""
    return {country for one in routes if one.network and (country := plan.country_of(one.network))}


async def try_once(key: Key, one: Account, number: str) -> str:
    """Look up a number (E.164) now, for which the supplier charges; returns its network (MCC-MNC), empty if the
    supplier knows none. Nothing is stored. Raises Invalid (to) if there is no answer."""
    try:
        secret = accounts.open_secret(key, one)
    except Unsealable:
        raise Invalid(("to", "sealed", f"the API key of {one.name} was encrypted with another secret key")) from None
    asker = LookupClient(one.kind, one.settings, secret)
    try:
        answer = await asker.ask([number[1:]])
    finally:
        await asker.close()
    if number[1:] not in answer.told:
        why = answer.error or "the answer does not name the number"
        raise Invalid(("to", "unanswered", f"{one.name} did not answer: {why}"))
    return network_of(answer.told[number[1:]])


class Lookups:
    """Look-ups within one worker."""

    def __init__(self, pool: Pool, key: Key, directory: Directory) -> None:
        """`directory`: the worker's, which receives the results."""
        self._pool, self._key, self._directory = pool, key, directory
        #: The account for each country in which look-ups affect routing.
        self._serving: dict[str, Account] = {}
        self._accounts: list[Account] = []
        self._askers: dict[UUID, tuple[Account, LookupClient]] = {}
        #: What is under way, by account: one that is slow to answer must not delay the others.
        self._asking: dict[UUID, asyncio.Task[int]] = {}
        #: Answers whose rows are locked.
        self._storing: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        #: Set when a look-up was requested here.
        self.wake = asyncio.Event()

    @property
    def is_used(self) -> bool:
        """True if numbers of any country are looked up."""
        return bool(self._serving)

    async def refresh(self, conn: Connection | Pool, routes: Collection[Route]) -> None:
        """Load accounts and apply routes."""
        where = countries(routes)
        self._accounts = await accounts.load(conn) if where else []
        found = {country: accounts.serving(self._accounts, country) for country in where}
        self._serving = {country: one for country, one in found.items() if one is not None}

    async def before(self, conn: Connection, messages: Sequence[ClaimedMessage]) -> dict[UUID, float]:
        """The live messages that wait for a look-up, and for how many seconds; requests missing look-ups. Runs in the
        caller's transaction, which postpones them."""
        wanted: dict[int, Account] = {}
        of: dict[UUID, int] = {}
        for one in messages:
            place = self._directory.place(one.recipient)
            account = None if place.is_exact or one.mode != "live" else self._serving.get(place.country)
            if account is not None:
                of[one.lease.id] = number = int(one.recipient[1:])
                wanted[number] = account
        if not wanted:
            return {}
        known = await asked.states(conn, sorted(wanted))
        new = {number: one.id for number, one in wanted.items() if number not in known or known[number].is_due}
        begun = await asked.ask(conn, new) if new else set()
        if begun:
            self.wake.set()
        ahead = clock.AHEAD.total_seconds()
        waiting: dict[UUID, float] = {}
        for id, number in of.items():
            state, longest = known.get(number), wanted[number].settings.wait_seconds
            if number in begun:
                waiting[id] = min(STEP, longest)
            elif state is not None and state.state == "found":
                self._directory.hear(LearnedNetwork(number, state.network, LOOKUP))
            elif state is not None and state.state == "asked":
                # One that was requested in times to come, before the clock was set back, is not waited for.
                left = longest - state.age.total_seconds()
                if 0 < left <= longest + ahead:
                    waiting[id] = min(STEP, left)
        return waiting

    async def round(self) -> int:
        """Send waiting look-ups to suppliers that are not being asked already; returns how many numbers were sent, once
        one of them is done."""
        async with self._pool.acquire() as conn:
            await asked.give_up(conn)
        for account in self._accounts:
            if account.state == "active" and account.id not in self._asking:
                self._asking[account.id] = asyncio.create_task(self._ask(account))
        if not self._asking:
            return 0
        ended, _ = await asyncio.wait(self._asking.values(), return_when=asyncio.FIRST_COMPLETED)
        self._asking = {id: task for id, task in self._asking.items() if task not in ended}
        return sum([task.result() for task in ended])

    async def _ask(self, account: Account) -> int:
        asker = await self._asker(account)
        if asker is None:
            return 0
        settings = account.settings
        if self._stopping.is_set():
            return 0
        began = monotonic()
        async with self._pool.acquire() as conn:
            numbers = await asked.take(conn, account.id, limit=asker.most)
        if not numbers:
            return 0
        answer = await asker.ask([str(one) for one in numbers], wanted=lambda: monotonic() - began < BEGIN)
        if not answer.told and monotonic() - began > asked.TAKEN.total_seconds():
            return len(numbers)  # this process stood still, and another worker may be asking
        told = {int(number): network_of(network) for number, network in answer.told.items()}
        if locked := await self._store(account, numbers, told, error=answer.error):
            # Others' answers do not wait for their rows.
            task = asyncio.create_task(self._store_locked(account, locked, told, error=answer.error))
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)
        if answer.error:
            failed = len(numbers) - len(told)
            log.warning("look-up failed", supplier=account.name, numbers=failed, error=answer.error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(len(numbers) / settings.per_second):
                await self._stopping.wait()
        return len(numbers)

    async def _store(
        self, account: Account, numbers: Sequence[int], told: Mapping[int, str], *, error: str
    ) -> Sequence[int]:
        """Store answers, which are paid for and exist only in this process: while the database is unavailable, for as
        long as no other worker may ask for these numbers again. Returns those whose rows somebody keeps locked. Nothing
        is learned about somebody who was erased meanwhile."""
        settings = account.settings
        left, is_again = numbers, False

        async def store() -> None:
            nonlocal left, is_again
            again, is_again = is_again, True
            async with self._pool.acquire() as conn:

                async def answered(some: Sequence[int]) -> None:
                    waited = await asked.answered(
                        conn,
                        some,
                        told,
                        supplier_id=account.id,
                        error=error,
                        price=settings.cost,
                        currency=settings.currency,
                        again=again,
                    )
                    found = [LearnedNetwork(one, network, LOOKUP) for one in waited if (network := told.get(one))]
                    await learned.learn(conn, found)

                _, left = await timers.around_locks(conn, left, answered)

        async with asyncio.timeout(STORE):
            await once("store look-ups", store, stopping=asyncio.Event())
        return left

    async def _store_locked(
        self, account: Account, numbers: Sequence[int], told: Mapping[int, str], *, error: str
    ) -> None:
        """Store them as soon as they are not, as long as no other worker may ask for these numbers again."""
        try:
            async with asyncio.timeout(STORE):
                while numbers:
                    await asyncio.sleep(LOCKED_PAUSE)
                    numbers = await self._store(account, numbers, told, error=error)
        except TimeoutError:
            log.error("answers to look-ups not stored", supplier=account.name, numbers=len(numbers))

    async def _asker(self, account: Account) -> LookupClient | None:
        known = self._askers.get(account.id)
        if known is not None and known[0].changed_at == account.changed_at:
            return known[1]
        if known is not None:
            del self._askers[account.id]
            await known[1].close()
        try:
            secret = accounts.open_secret(self._key, account)
        except Unsealable:
            log.error("look-up supplier unusable: another secret key", supplier=account.name)
            return None
        asker = LookupClient(account.kind, account.settings, secret)
        self._askers[account.id] = account, asker
        return asker

    async def stop(self, *, grace: float) -> None:
        """Ask for no more, and wait up to `grace` seconds for answers: they are paid for."""
        self._stopping.set()
        if under_way := {*self._asking.values(), *self._storing}:
            await asyncio.wait(under_way, timeout=grace)

    async def close(self) -> None:
        """Close connections to suppliers. What has not been answered is asked again by another worker."""
        under_way = {*self._asking.values(), *self._storing}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        self._asking.clear()
        for _, asker in self._askers.values():
            await asker.close()
        self._askers.clear()
