"""Tests of an account step by step: which answers count for a step."""

from __future__ import annotations

from smpp_peer import Line, Peer

from heliograph.base.ids import uuid7
from heliograph.suppliers import kinds, probing
from heliograph.suppliers.contract import Account
from heliograph.suppliers.smpp.codec import pdu as p


def account(peer: Peer) -> Account:
    settings = {"host": "127.0.0.1", "port": peer.port, "system_id": "esme", "tls": False}
    return Account(uuid7(), settings, "secret")


async def test_each_step_is_answered(peer: Peer) -> None:
    steps = await probing.probe(kinds.SMPP, account(peer))
    assert [(one.name, one.ok) for one in steps] == [
        (name, True) for name in ("resolve", "connect", "bind", "enquire", "unbind")
    ]


async def test_a_host_that_is_down_is_passed_over_as_workers_do(peer: Peer) -> None:
    """The test used to fail although sessions were open: it connected only to the first address of the first host."""
    given = account(peer)
    given.settings["host"] = ["127.0.0.9", "127.0.0.1"]
    steps = await probing.probe(kinds.SMPP, given)
    assert [one.ok for one in steps] == [True] * 5
    assert str(steps[1].said) == f"127.0.0.1:{peer.port}, but not 127.0.0.9"
    given.settings["host"] = ["127.0.0.9", "127.0.0.8"]
    steps = await probing.probe(kinds.SMPP, given)
    assert [one.ok for one in steps] == [True, False]
    assert "nothing is listening there" in steps[1].said


async def test_a_request_with_the_same_sequence_number_is_no_answer(peer: Peer) -> None:
    def hang_up(line: Line, pdu: p.Pdu) -> None:
        line.send(p.Unbind(pdu.sequence))
        line.transport.close()

    peer.answer = hang_up  # type: ignore[method-assign]
    steps = await probing.probe(kinds.SMPP, account(peer))
    assert [(one.name, one.ok) for one in steps] == [("resolve", True), ("connect", True), ("bind", False)]
    assert "the connection was closed" in steps[-1].said


async def test_closing_the_connection_answers_an_unbind(peer: Peer) -> None:
    """The test used to say that the account could not be reached, although every session opened."""
    answer = peer.answer

    def close(line: Line, pdu: p.Pdu) -> None:
        if isinstance(pdu, p.Unbind):
            line.transport.close()
        else:
            answer(line, pdu)

    peer.answer = close  # type: ignore[method-assign]
    steps = await probing.probe(kinds.SMPP, account(peer))
    assert [one.ok for one in steps] == [True] * 5


async def test_a_pdu_that_nobody_knows_fails_no_step(peer: Peer) -> None:
    answer = peer.answer

    def greet(line: Line, pdu: p.Pdu) -> None:
        line.transport.write(bytes.fromhex("00000010000102000000000000000001"))
        answer(line, pdu)

    peer.answer = greet  # type: ignore[method-assign]
    steps = await probing.probe(kinds.SMPP, account(peer))
    assert [one.ok for one in steps] == [True] * 5
