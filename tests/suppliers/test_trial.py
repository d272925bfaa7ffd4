"""A test message of an SMPP account that has several hosts."""

from __future__ import annotations

import asyncio

import pytest
from smpp_peer import Line, Peer

from heliograph.base.ids import uuid7
from heliograph.sms.management import following
from heliograph.sms.management.following import Followed
from heliograph.suppliers import kinds, trial
from heliograph.suppliers.contract import Account, Health, Verdict
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.connector import SmppConnector
from tests.processes import until_true

MESSAGE = following.submission("+258841234567", "Hello", "ACME")


def account(peer: Peer, *hosts: str) -> Account:
    settings = {"host": list(hosts), "port": peer.port, "system_id": "esme", "tls": False, "reconnect_seconds": 0.3}
    return Account(uuid7(), settings, "secret")


async def test_a_host_that_is_down_is_passed_over_as_workers_do(peer: Peer) -> None:
    """The message was said not to reach the supplier, although sessions were open."""
    done = await trial.attempt(kinds.SMPP, account(peer, "127.0.0.9", "127.0.0.1"), MESSAGE)
    assert done.outcome is not None, done.error
    assert done.outcome.verdict is Verdict.ACCEPTED

    async def told(_: Followed) -> None:
        """Nobody watches."""

    found = await following.follow(kinds.SMPP, account(peer, "127.0.0.9", "127.0.0.1"), MESSAGE, told, wait=0.0)
    assert (found.verdict, found.note) == ("accepted", "silent"), found


async def test_a_host_that_is_about_to_answer_is_waited_for(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as the last host was being tried, the one before it was said to be down."""
    looks, answer, health = 0, peer.answer, SmppConnector.health

    def counted(self: SmppConnector) -> Health:
        nonlocal looks
        looks += 1
        return health(self)

    async def later(line: Line, pdu: p.Pdu) -> None:
        enough = looks + 2

        async def is_enough() -> bool:
            return looks >= enough or running.done()

        await until_true(is_enough)
        answer(line, pdu)

    def late(line: Line, pdu: p.Pdu) -> None:
        if isinstance(pdu, p.Bind):
            waiting.append(asyncio.create_task(later(line, pdu)))
        else:
            answer(line, pdu)

    waiting: list[asyncio.Task[None]] = []
    monkeypatch.setattr(SmppConnector, "health", counted)
    monkeypatch.setattr(peer, "answer", late)
    running = asyncio.create_task(trial.attempt(kinds.SMPP, account(peer, "127.0.0.9", "127.0.0.1"), MESSAGE))
    done = await running
    assert done.outcome is not None, done.error


async def test_once_all_are_down_that_is_said(peer: Peer) -> None:
    done = await trial.attempt(kinds.SMPP, account(peer, "127.0.0.9", "127.0.0.8"), MESSAGE)
    assert (done.outcome, "nothing is listening there" in done.error) == (None, True)


async def test_no_other_host_is_tried_after_a_refused_bind(peer: Peer) -> None:
    """Workers wait for five minutes then: the password is the same everywhere."""
    peer.bind_status = 0x0E
    done = await trial.attempt(kinds.SMPP, account(peer, "127.0.0.1", "127.0.0.9"), MESSAGE)
    assert (done.outcome, "0x0000000E" in done.error, peer.binds) == (None, True, 1)
