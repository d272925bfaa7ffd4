"""Sends of an organization whose rows another transaction keeps locked do not delay those of others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from heliograph.accounts.requests import Answer
from heliograph.base.errors import Unavailable
from heliograph.sending.intake import MOST_APART, Intake

HELD, OTHER = UUID(int=1), UUID(int=2)
#: Seconds; longer than anything here takes.
LONG = 60.0


def item(organization: UUID) -> Any:
    return SimpleNamespace(send=SimpleNamespace(actor=SimpleNamespace(organization_id=organization), key_hash=None))


class Store:
    """Commits batches, except those with an organization whose rows are locked: these wait until `gives_up`."""

    def __init__(self, *locked: UUID) -> None:
        self.locked = set(locked)
        self.gives_up = asyncio.Event()
        self.gives_up.set()
        self.waits = asyncio.Event()
        self.batches: list[list[UUID]] = []

    async def __call__(self, items: list[Any]) -> list[Answer | BaseException]:
        organizations = [one.send.actor.organization_id for one in items]
        self.batches.append(organizations)
        if self.locked & set(organizations):
            self.waits.set()
            await self.gives_up.wait()
            if self.locked & set(organizations):
                raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
        return [Answer(202, b"", False) for _ in items]


async def put(intake: Intake[Any], *organizations: UUID) -> list[Any]:
    async with asyncio.timeout(LONG):
        return await asyncio.gather(*(intake.put(item(id)) for id in organizations), return_exceptions=True)


async def test_others_do_not_wait_for_an_organization_that_is_locked() -> None:
    store = Store(HELD)
    intake: Intake[Any] = Intake(store, name="")
    refused, stored = await put(intake, HELD, OTHER)
    assert isinstance(refused, Unavailable)
    assert stored.status == 202
    # It still is, and its next send waits for the lock.
    store.gives_up.clear()
    store.waits.clear()
    waiting = asyncio.create_task(intake.put(item(HELD)))
    await store.waits.wait()
    for _ in range(3):
        assert [one.status for one in await put(intake, OTHER)] == [202]
    assert not waiting.done()
    # The lock is released, and from the next batch on both share one again.
    store.locked.clear()
    store.gives_up.set()
    assert (await waiting).status == 202
    await intake.drain()
    await put(intake, HELD, OTHER)
    assert store.batches[-1] == [HELD, OTHER]


async def test_few_organizations_are_apart_and_give_way_once_they_send_nothing() -> None:
    ids = [UUID(int=n) for n in range(10, 10 + MOST_APART + 1)]
    store = Store(*ids)
    intake: Intake[Any] = Intake(store, name="")
    assert all(isinstance(one, Unavailable) for one in await put(intake, *ids))
    await intake.drain()
    # The first of them gave way to the last, and takes the place of another one that sends nothing.
    assert all(isinstance(one, Unavailable) for one in await put(intake, ids[0]))
    store.gives_up.clear()
    store.waits.clear()
    waiting = asyncio.create_task(intake.put(item(ids[0])))
    await store.waits.wait()
    assert [one.status for one in await put(intake, OTHER)] == [202]
    store.gives_up.set()
    with pytest.raises(Unavailable):
        await waiting
