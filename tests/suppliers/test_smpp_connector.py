"""The connector against a peer on a real socket: outcomes, receipts, losses, long messages."""

from __future__ import annotations

import asyncio
import logging
import math
import struct
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import pytest
import uvloop
from smpp_peer import Line, Peer, PeerAccount, submission, until
from structlog.testing import capture_logs

from heliograph.suppliers.contract import Account, OnAnswered, PartlyStored, Scope, Submission, Verdict
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.connector import connect
from tests.ports import held_port


@pytest.fixture
async def account(peer: Peer) -> AsyncIterator[PeerAccount]:
    account = await PeerAccount(peer.port).start()
    yield account
    await account.connector.stop(grace=0.2)


def receipt_pdu(id: str, sequence: int = 1, stat: str = "DELIVRD", **more: Any) -> p.DeliverSm:
    text = f"id:{id} sub:001 dlvrd:001 submit date:2601010000 done date:2601010000 stat:{stat} err:000 text:"
    fields: dict[str, Any] = {"source_addr": "258841234567", "destination_addr": "ACME", "esm_class": 4} | more
    return p.DeliverSm(sequence, short_message=text.encode(), **fields)


async def test_a_message_is_accepted_and_its_receipt_names_the_same_key(peer: Peer, account: PeerAccount) -> None:
    account.submit()
    (outcome,) = await account.ended()
    assert outcome.verdict is Verdict.ACCEPTED
    assert [(part.number, part.supplier_message_id) for part in outcome.parts] == [(1, "id1")]
    sent = peer.got(p.SubmitSm)[0]
    assert (sent.destination_addr, sent.source_addr, sent.short_message) == ("258841234567", "ACME", b"Hello")
    peer.lines[0].send(receipt_pdu("ID1"))
    await until(lambda: peer.got(p.DeliverSmResp))
    assert account.receipts[0].keys == ("id1",)
    assert peer.got(p.DeliverSmResp) == [p.DeliverSmResp(1, 0, "")]


@pytest.mark.parametrize(
    ("status", "verdict", "failover", "counts", "alarm"),
    [
        (0x08, "busy", False, True, False),
        (0x58, "busy", False, False, False),
        (0x0B, "refused", True, True, False),
        (0x01, "refused", False, True, False),
        (0x0A, "refused", True, True, True),
        (0x0E, "unreachable", False, False, True),
        (0x451, "busy", False, True, True),
    ],
)
async def test_refusals(
    peer: Peer, account: PeerAccount, status: int, verdict: str, failover: bool, counts: bool, alarm: bool
) -> None:
    peer.submit_status = status
    account.submit()
    (outcome,) = await account.ended()
    assert (outcome.verdict, outcome.failover, outcome.counts) == (verdict, failover, counts)
    assert (outcome.alarm, outcome.code) == (alarm, f"0x{status:08X}")


async def test_a_generic_nack_answers_the_submit_that_it_names(peer: Peer, account: PeerAccount) -> None:
    peer.on_submit = lambda line, pdu: line.send(p.GenericNack(pdu.sequence, 0x03))
    account.submit()
    (outcome,) = await account.ended()
    assert (outcome.verdict, outcome.code, outcome.alarm) == (Verdict.REFUSED, "0x00000003", True)
    assert account.connector.health().sessions == 1


async def test_a_generic_nack_that_names_nothing_ends_the_session(peer: Peer, account: PeerAccount) -> None:
    peer.on_submit = lambda line, pdu: line.send(p.GenericNack(0, 0x02))
    account.submit()
    (outcome,) = await account.ended()
    assert outcome.verdict is Verdict.UNKNOWN
    await until(lambda: peer.binds == 2)


async def test_an_empty_id_is_no_id_and_a_constant_id_is_kept(peer: Peer, account: PeerAccount) -> None:
    ids = iter(["", "123456789", "123456789"])
    peer.on_submit = lambda line, pdu: line.send(p.SubmitSmResp(pdu.sequence, 0, next(ids)))
    account.submit(3)
    outcomes = await account.ended(3)
    assert [outcome.parts[0].supplier_message_id for outcome in outcomes] == [None, "123456789", "123456789"]
    assert {outcome.verdict for outcome in outcomes} == {Verdict.ACCEPTED}


async def test_hex_in_the_answer_and_decimal_in_the_receipt_are_one_key(peer: Peer) -> None:
    account = await PeerAccount(peer.port, resp_id_base="hex", dlr_id_base="dec").start()
    peer.on_submit = lambda line, pdu: line.send(p.SubmitSmResp(pdu.sequence, 0, "33E95179"))
    account.submit()
    (outcome,) = await account.ended()
    assert outcome.parts[0].supplier_message_id == "870928761"
    assert outcome.parts[0].status == "0x00000000 id:33E95179"
    peer.lines[0].send(receipt_pdu("0870928761"))
    await until(lambda: account.receipts)
    assert account.receipts[0].keys == ("870928761",)
    await account.connector.stop(grace=0.2)


async def test_the_case_of_a_state_that_a_setting_names_does_not_matter(peer: Peer) -> None:
    """Written as in a receipt, it used to be accepted without effect, and no longer listed as unknown."""
    account = await PeerAccount(peer.port, final_states={"Buffered2": "delivered", "(none)": "failed"}).start()
    peer.lines[0].send(receipt_pdu("1", stat="BUFFERED2"), receipt_pdu("2", 2, stat=""))
    await until(lambda: len(account.receipts) == 2)
    assert [(one.state, one.unknown_word) for one in account.receipts] == [("delivered", ""), ("failed", "")]
    await account.connector.stop(grace=0.2)


async def test_a_receipt_before_the_answer_is_handed_over(peer: Peer, account: PeerAccount) -> None:
    def early(line: Line, pdu: p.SubmitSm) -> None:
        line.send(receipt_pdu("early"), p.SubmitSmResp(pdu.sequence, 0, "early"))

    peer.on_submit = early
    account.submit()
    (outcome,) = await account.ended()
    await until(lambda: account.receipts)
    assert account.receipts[0].keys == (outcome.parts[0].supplier_message_id,)


async def test_a_receipt_in_tlvs_only_and_one_as_data_sm(peer: Peer, account: PeerAccount) -> None:
    tlvs = {p.Tag.RECEIPTED_MESSAGE_ID: b"7f\0", p.Tag.MESSAGE_STATE: b"\x02"}
    peer.lines[0].send(p.DeliverSm(5, esm_class=4, tlvs=tlvs), p.DataSm(6, esm_class=4, tlvs=tlvs))
    await until(lambda: len(account.receipts) == 2)
    assert {receipt.keys for receipt in account.receipts} == {("7f",)}
    await until(lambda: peer.got(p.DataSmResp) == [p.DataSmResp(6, 0, "")])


async def test_duplicates_are_all_handed_over_and_answered(peer: Peer, account: PeerAccount) -> None:
    peer.lines[0].send(*(receipt_pdu("1", sequence) for sequence in range(1, 6)))
    await until(lambda: len(peer.got(p.DeliverSmResp)) == 5)
    assert len({receipt.raw for receipt in account.receipts}) == 1


async def test_a_receipt_may_come_on_another_session(peer: Peer) -> None:
    account = await PeerAccount(peer.port, sessions=2).start(bound=2)
    account.submit()
    await account.ended()
    for line in peer.lines:
        line.send(receipt_pdu("id1"))
    await until(lambda: len(account.receipts) == 2)
    await account.connector.stop(grace=0.2)


async def test_a_message_from_a_handset(peer: Peer, account: PeerAccount) -> None:
    peer.lines[0].send(p.DeliverSm(3, source_addr="+258841234567", destination_addr="12345", short_message=b"STOP"))
    await until(lambda: peer.got(p.DeliverSmResp))
    assert [(one.sender, one.text) for one in account.inbound] == [("258841234567", "STOP")]
    assert not account.receipts


async def test_a_receipt_is_answered_only_after_it_was_stored(peer: Peer, account: PeerAccount) -> None:
    account.gate = asyncio.Event()
    peer.lines[0].send(receipt_pdu("1"), p.EnquireLink(9))
    await until(lambda: peer.got(p.EnquireLinkResp))
    assert not peer.got(p.DeliverSmResp)
    account.gate.set()
    await until(lambda: peer.got(p.DeliverSmResp))


async def test_a_handler_of_answers_that_raises_leaves_nothing_unanswered(peer: Peer) -> None:
    """What had arrived meanwhile used to be answered only once more arrived."""
    batches: list[int] = []
    may_go_on = asyncio.Event()

    def fails(_: Sequence[int]) -> None:
        raise RuntimeError("a bug")

    async def take(inbound: Sequence[Any]) -> OnAnswered:
        batches.append(len(inbound))
        await may_go_on.wait()
        return fails

    async def nothing(receipts: Sequence[Any]) -> None:
        raise AssertionError

    settings = {"host": "127.0.0.1", "port": peer.port, "system_id": "esme", "tls": False}
    connector = connect(Account(UUID(int=1), settings, "secret"), lambda *_: None, nothing, take)
    await connector.start()
    connector.set_sessions(1)
    await until(lambda: connector.health().sessions == 1)
    with capture_logs() as logged:
        peer.lines[0].send(p.DeliverSm(1, source_addr="258841234567", short_message=b"one"))
        await until(lambda: batches == [1])
        peer.lines[0].send(p.DeliverSm(2, source_addr="258841234567", short_message=b"two"), p.EnquireLink(3))
        await until(lambda: peer.got(p.EnquireLinkResp))
        may_go_on.set()
        await until(lambda: len(peer.got(p.DeliverSmResp)) == 2)
    assert [pdu.status for pdu in peer.got(p.DeliverSmResp)] == [0, 0]
    assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == ["SMPP intake handler failed"] * 2
    await connector.stop(grace=0.2)


async def test_what_cannot_be_stored_is_asked_for_again(peer: Peer, account: PeerAccount) -> None:
    account.broken = OSError("the database is gone")
    peer.lines[0].send(receipt_pdu("1"))
    await until(lambda: peer.got(p.DeliverSmResp))
    assert peer.got(p.DeliverSmResp)[0].status == 0x64
    account.broken = None
    peer.lines[0].send(receipt_pdu("1", 2))
    await until(lambda: len(peer.got(p.DeliverSmResp)) == 2)
    assert peer.got(p.DeliverSmResp)[1].status == 0


async def test_only_what_cannot_be_stored_is_asked_for_again(peer: Peer) -> None:
    """One receipt whose message somebody kept locked had its whole batch delivered again, each time."""
    account = await PeerAccount(peer.port).start()
    account.gate = asyncio.Event()
    intake = account.connector._receipts
    peer.lines[0].send(receipt_pdu("first"))
    await until(lambda: intake.waiting == 0 and intake._runner is not None)
    peer.lines[0].send(*(receipt_pdu(str(n), n) for n in range(100, 104)))
    await until(lambda: intake.waiting == 4)
    account.broken = PartlyStored({2: OSError("a row is locked")})
    account.gate.set()
    await until(lambda: len(peer.got(p.DeliverSmResp)) == 5)
    refused = {pdu.sequence for pdu in peer.got(p.DeliverSmResp) if pdu.status == 0x64}
    assert refused == {102}
    await account.connector.stop(grace=0.2)


async def test_a_full_list_stops_the_reading_and_refuses_nothing(peer: Peer) -> None:
    account = await PeerAccount(peer.port, receipts_queue=10).start()
    account.gate = asyncio.Event()
    intake = account.connector._receipts
    peer.lines[0].send(receipt_pdu("first"))
    await until(lambda: intake.waiting == 0 and intake._runner is not None)
    peer.lines[0].send(*(receipt_pdu(str(n), n) for n in range(100, 130)))
    await until(lambda: intake.holds)
    # Nothing that the peer sends now is read, and nothing that was read is answered.
    taken = intake.waiting
    peer.lines[0].send(p.EnquireLink(9), receipt_pdu("last", 200))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (intake.waiting, peer.got(p.EnquireLinkResp), peer.got(p.DeliverSmResp)) == (taken, [], [])
    account.gate.set()
    await until(lambda: len(peer.got(p.DeliverSmResp)) == 32)
    assert {pdu.status for pdu in peer.got(p.DeliverSmResp)} == {0}
    assert len(peer.got(p.EnquireLinkResp)) == 1
    assert len(account.receipts) == sum(account.batches) == 32
    await account.connector.stop(grace=0.2)


async def test_time_in_which_nothing_is_read_counts_for_no_deadline(peer: Peer) -> None:
    """The answer to a submit waits behind receipts for which there is no room."""
    account = await PeerAccount(
        peer.port, receipts_queue=1, response_seconds=0.2, enquire_seconds=0.1, silence_seconds=0.1
    ).start()
    link = account.connector._transmitters[0]
    connection = link.connection
    assert connection is not None
    peer.on_submit = lambda line, pdu: line.send(receipt_pdu("1"), p.SubmitSmResp(pdu.sequence, 0, "late"))
    connection.hold()
    account.submit()
    await until(lambda: peer.got(p.SubmitSm))
    waited = asyncio.get_running_loop().time() + 0.5
    await until(lambda: asyncio.get_running_loop().time() > waited)
    assert not account.outcomes
    connection.release()
    (outcome,) = await account.ended()
    assert outcome.verdict is Verdict.ACCEPTED
    assert link.connection is connection
    await account.connector.stop(grace=0.2)


async def test_behind_a_batch_that_is_stuck_nothing_waits_for_ever(peer: Peer) -> None:
    """A supplier whose PDUs are not read takes us for dead: what cannot be stored is requested again in time."""
    account = await PeerAccount(peer.port, receipts_queue=10).start()
    account.gate = asyncio.Event()
    intake = account.connector._receipts
    intake._patience = 0.05
    peer.lines[0].send(receipt_pdu("first"))
    await until(lambda: intake.waiting == 0 and intake._runner is not None)
    peer.lines[0].send(*(receipt_pdu(str(n), n) for n in range(100, 130)), p.EnquireLink(9))
    await until(lambda: peer.got(p.EnquireLinkResp) and len(peer.got(p.DeliverSmResp)) == 30)
    assert {pdu.status for pdu in peer.got(p.DeliverSmResp)} == {0x64}
    account.gate.set()
    await until(lambda: len(peer.got(p.DeliverSmResp)) == 31)
    assert [receipt.keys for receipt in account.receipts] == [("first",)]
    await account.connector.stop(grace=0.2)


async def test_undecodable_receipts_are_refused_for_good_and_reported(peer: Peer, account: PeerAccount) -> None:
    body = b"\0\0\0no end"
    with capture_logs() as logged:
        for sequence in (77, 78):
            peer.lines[0].transport.write(struct.pack(">IIII", 16 + len(body), 5, 0, sequence) + body)
        await until(lambda: len(peer.got(p.DeliverSmResp)) == 2)
    assert peer.got(p.DeliverSmResp) == [p.DeliverSmResp(77, 0x66, ""), p.DeliverSmResp(78, 0x66, "")]
    assert account.connector.health().sessions == 1
    (report,) = logged
    assert (report["event"], report["pdu"], report["reason"]) == (
        "SMPP message unreadable",
        "deliver_sm",
        "body too short",
    )


# -- losses ------------------------------------------------------------------------------------------------------------


async def test_no_answer_in_time_is_unknown(peer: Peer) -> None:
    account = await PeerAccount(peer.port, response_seconds=0.1).start()
    peer.on_submit = lambda line, pdu: None
    account.submit(2)
    outcomes = await account.ended(2)
    assert {outcome.verdict for outcome in outcomes} == {Verdict.UNKNOWN}
    assert account.connector.health().sessions == 1
    await account.connector.stop(grace=0.2)


async def test_an_answer_after_the_timeout_is_a_second_outcome(peer: Peer) -> None:
    account = await PeerAccount(peer.port, response_seconds=0.1, late=60.0).start()
    kept: list[tuple[Line, p.SubmitSm]] = []
    peer.on_submit = lambda line, pdu: kept.append((line, pdu))
    (sent,) = account.submit(segments=(b"a", b"b", b"c"))
    (first,) = await account.ended()
    assert (first.verdict, first.doubtful, first.total) == (Verdict.UNKNOWN, (1, 2, 3), 3)
    for line, pdu in kept:
        peer.accept(line, pdu)
    *_, second, third = await account.ended(4)
    assert (second.verdict, second.doubtful) == (Verdict.UNKNOWN, (3,))
    assert (third.verdict, third.doubtful) == (Verdict.ACCEPTED, ())
    assert [(part.number, part.supplier_message_id) for part in third.parts] == [(1, "id1"), (2, "id2"), (3, "id3")]
    assert {one.message_id for one, _ in account.outcomes} == {sent.message_id}
    await account.connector.stop(grace=0.2)


async def test_a_late_answer_does_not_repeat_a_refusal(peer: Peer) -> None:
    """A refused segment decides about its message without the others: it was recorded, and counted, twice if one of
    those was answered while the database was away."""
    account = await PeerAccount(peer.port, response_seconds=0.3, late=60.0).start()
    silent: list[tuple[Line, p.SubmitSm]] = []

    def answer(line: Line, pdu: p.SubmitSm) -> None:
        if pdu.short_message.endswith(b"b"):
            line.send(p.SubmitSmResp(pdu.sequence, 0x0B, None))
        elif pdu.short_message.endswith(b"d"):
            peer.accept(line, pdu)
        else:
            silent.append((line, pdu))

    peer.on_submit = answer
    account.submit(segments=(b"a", b"b", b"c"))
    await until(lambda: any(outcome.verdict is Verdict.REFUSED for _, outcome in account.outcomes))
    for line, pdu in silent:
        peer.accept(line, pdu)
    (after,) = account.submit(segments=(b"d",))
    await until(lambda: account.outcomes[-1][0].message_id == after.message_id)
    assert [outcome.verdict for _, outcome in account.outcomes].count(Verdict.REFUSED) == 1
    await account.connector.stop(grace=0.2)


async def test_a_number_rule_and_the_class_stand_in_the_pdu(peer: Peer) -> None:
    account = await PeerAccount(peer.port, destination=(1, 1), short_code=(3, 0), priority=0, urgent_priority=2).start()
    account.submit(sender="1234")
    account.submit(sender="1234", address="00258841234567", numbering=(2, 8), sender_numbering=(6, 1), priority=1)
    assert [one.verdict for one in await account.ended(2)] == [Verdict.ACCEPTED] * 2
    plain, ruled = peer.got(p.SubmitSm)
    assert (plain.destination_addr, plain.dest_addr_ton, plain.dest_addr_npi) == ("258841234567", 1, 1)
    assert (plain.source_addr, plain.source_addr_ton, plain.source_addr_npi, plain.priority_flag) == ("1234", 3, 0, 0)
    assert (ruled.destination_addr, ruled.dest_addr_ton, ruled.dest_addr_npi) == ("00258841234567", 2, 8)
    assert (ruled.source_addr, ruled.source_addr_ton, ruled.source_addr_npi, ruled.priority_flag) == ("1234", 6, 1, 2)
    await account.connector.stop(grace=0.2)


async def test_only_segments_that_the_supplier_has_not_got_are_sent(peer: Peer, account: PeerAccount) -> None:
    account.submit(segments=(b"a", b"b", b"c", b"d"), held=(1, 3))
    (outcome,) = await account.ended()
    assert [pdu.short_message for pdu in peer.got(p.SubmitSm)] == [
        bytes((5, 0, 3, 0x34, 4, 2)) + b"b",
        bytes((5, 0, 3, 0x34, 4, 4)) + b"d",
    ]
    assert outcome.verdict is Verdict.ACCEPTED
    assert ([part.number for part in outcome.parts], outcome.total) == ([2, 4], 4)


async def test_several_timeouts_in_a_row_end_the_session(peer: Peer) -> None:
    account = await PeerAccount(peer.port, response_seconds=0.1, max_timeouts=3).start()
    peer.on_submit = lambda line, pdu: None
    account.submit(3)
    await account.ended(3)
    await until(lambda: peer.binds == 2)
    await account.connector.stop(grace=0.2)


async def test_a_drop_with_a_full_window_tells_written_from_unwritten(peer: Peer) -> None:
    account = await PeerAccount(peer.port, window=5).start()
    peer.on_submit = lambda line, pdu: None
    account.submit(8)
    await until(lambda: len(peer.got(p.SubmitSm)) == 5)
    assert (account.connector.ready(), account.connector.capacity()) == (True, 0)
    peer.lines[0].transport.abort()
    outcomes = await account.ended(8)
    assert sorted(outcome.verdict for outcome in outcomes) == ["unknown"] * 5 + ["unreachable"] * 3
    unreachable = [outcome for outcome in outcomes if outcome.verdict is Verdict.UNREACHABLE]
    assert not any(outcome.counts for outcome in unreachable)
    await until(lambda: account.connector.health().sessions == 1)
    assert len(account.outcomes) == 8
    await account.connector.stop(grace=0.2)


async def test_what_was_not_flushed_is_unreachable(peer: Peer, account: PeerAccount) -> None:
    account.submit(3)
    (link,) = account.connector._transmitters
    assert link.connection is not None
    link.connection.abort()
    outcomes = await account.ended(3)
    assert {outcome.verdict for outcome in outcomes} == {Verdict.UNREACHABLE}
    assert not peer.got(p.SubmitSm)


async def test_without_a_session_everything_is_unreachable() -> None:
    with held_port() as port:
        account = PeerAccount(port)
        await account.connector.start()
        assert (account.connector.ready(), account.connector.capacity()) == (False, 0)
        account.submit(2)
        assert account.outcomes == []
        outcomes = await account.ended(2)
        assert {(outcome.verdict, outcome.counts) for outcome in outcomes} == {(Verdict.UNREACHABLE, False)}
        await until(lambda: "cannot connect" in account.connector.health().last_error)
        peer = await Peer().start(port=port)
        await until(lambda: account.connector.health().sessions == 1)
        await account.connector.stop(grace=0.2)
        await peer.stop()


async def test_hosts_take_turns(peer: Peer) -> None:
    account = await PeerAccount(peer.port, host=["127.0.0.9", "x" * 64, "127.0.0.1"]).start()
    account.submit()
    assert (await account.ended())[0].verdict is Verdict.ACCEPTED
    await account.connector.stop(grace=0.2)


async def test_names_that_are_never_answered_hold_up_no_other_supplier(peer: Peer) -> None:
    """They used to occupy all threads that the event loop has for look-ups, so no other supplier could reconnect."""
    never = threading.Event()
    asked: list[str] = []

    def lookup(name: str) -> list[str]:
        asked.append(name)
        never.wait(120)
        raise OSError("no answer")

    stuck = [PeerAccount(peer.port, host=f"stuck{n}.example", lookup=lookup, sessions=2) for n in range(70)]
    try:
        for one in stuck:
            await one.connector.start()
        await until(lambda: len(asked) == len(stuck))
        account = await PeerAccount(peer.port, host="localhost").start()
        account.submit()
        assert (await account.ended())[0].verdict is Verdict.ACCEPTED
        await account.connector.stop(grace=0.2)
        await asyncio.gather(*(one.connector.stop(grace=0.0) for one in stuck))
    finally:
        never.set()
    assert sorted(set(asked)) == sorted(asked), "the sessions of an account share a look-up"


async def test_a_name_is_tried_at_all_its_addresses(peer: Peer) -> None:
    names = {"one.example": ["127.0.0.9"], "two.example": ["127.0.0.8", "127.0.0.1"]}
    account = await PeerAccount(peer.port, host=list(names), lookup=names.__getitem__).start()
    account.submit()
    assert (await account.ended())[0].verdict is Verdict.ACCEPTED
    await account.connector.stop(grace=0.2)


async def test_a_name_that_is_looked_up_for_ever_does_not_keep_the_next_host_waiting(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.http.resolver._OTHERS_WAIT", 0.01)
    never = threading.Event()

    def lookup(name: str) -> list[str]:
        if name == "stuck.example":
            never.wait(120)
            raise OSError("no answer")
        return ["127.0.0.1"]

    hosts = ["stuck.example", "well.example"]
    account = PeerAccount(peer.port, host=hosts, lookup=lookup, connect_seconds=600)
    try:
        await account.start()
        account.submit()
        assert (await account.ended())[0].verdict is Verdict.ACCEPTED
        await account.connector.stop(grace=0.2)
    finally:
        never.set()


async def test_a_message_does_not_wait_long_for_room(peer: Peer) -> None:
    """It used to be unreachable, which counts as a failure of the supplier."""
    account = await PeerAccount(peer.port, window=1, queue_seconds=0.1, submits_per_second=500).start()
    peer.on_submit = lambda line, pdu: None
    account.submit(2)
    (outcome,) = await account.ended(1)
    assert (outcome.verdict, outcome.counts, outcome.scope) == (Verdict.BUSY, False, Scope.PROCESS)
    assert (account.connector.health().throttles, account.connector._bucket.rate) == (0, 500), "nobody throttled it"
    await account.connector.stop(grace=0.1)
    assert sorted(outcome.verdict for _, outcome in account.outcomes) == ["busy", "unknown"]


@pytest.mark.parametrize("after", [False, True])
async def test_without_a_session_of_its_own_nothing_waits(peer: Peer, after: bool) -> None:
    """What waited for room when the last session moved to another worker used to stay for `queue_seconds`."""
    submits: list[tuple[Line, p.SubmitSm]] = []
    account = await PeerAccount(peer.port, window=1, queue_seconds=300).start()
    peer.on_submit = lambda line, pdu: submits.append((line, pdu))
    first, *waiting = account.submit(1 if after else 3)
    await until(lambda: submits)
    account.connector.set_sessions(0)
    assert (account.connector.ready(), account.connector.capacity()) == (False, 0)
    if after:
        waiting = account.submit(2)
    assert account.outcomes == []
    outcomes = await account.ended(2)
    assert {one.message_id for one, _ in account.outcomes} == {one.message_id for one in waiting}
    assert {(one.verdict, one.counts, one.scope) for one in outcomes} == {(Verdict.BUSY, False, Scope.PROCESS)}
    # The closing session still waits for the response to what it has sent.
    line, pdu = submits[0]
    peer.accept(line, pdu)
    assert (await account.ended(3))[-1].verdict is Verdict.ACCEPTED
    assert account.outcomes[-1][0].message_id == first.message_id
    await account.connector.stop(grace=0.2)


async def test_what_waited_for_too_long_while_the_process_stood_still_is_given_back(peer: Peer) -> None:
    submits: list[tuple[Line, p.SubmitSm]] = []
    peer.on_submit = lambda line, pdu: submits.append((line, pdu))
    account = await PeerAccount(peer.port, window=1, queue_seconds=0.2).start()
    first, waiting = account.submit(2)
    await until(lambda: submits)
    # The response, which makes room, arrives during the standstill.
    line, pdu = submits[0]
    line.send(p.SubmitSmResp(pdu.sequence, 0, "id1"))
    time.sleep(0.5)
    await account.ended(2)
    verdicts = {one.message_id: outcome.verdict for one, outcome in account.outcomes}
    assert verdicts == {first.message_id: Verdict.ACCEPTED, waiting.message_id: Verdict.BUSY}
    await account.connector.stop(grace=0.2)
    assert len(submits) == 1


@pytest.mark.parametrize("is_answered", [True, False])
async def test_what_another_worker_may_have_taken_over_is_not_sent(peer: Peer, is_answered: bool) -> None:
    """What waited used to be sent once more, and of a long message, its other segments followed."""
    submits: list[tuple[Line, p.SubmitSm]] = []
    peer.on_submit = lambda line, pdu: submits.append((line, pdu))
    lost_until = -math.inf
    account = await PeerAccount(peer.port, window=1, queue_seconds=300, lost_until=lambda: lost_until).start()
    (long,) = account.submit(text="a" * 400)
    (waiting,) = account.submit()
    await until(lambda: submits)
    lost_until = time.monotonic()
    line, pdu = submits[0]
    if is_answered:
        line.send(p.SubmitSmResp(pdu.sequence, 0, "id1"))
    else:
        await account.ended(1)
        line.send(p.SubmitSmResp(pdu.sequence, 0, "id1"))
    await account.ended(2)
    ended = {one.message_id: outcome for one, outcome in account.outcomes}
    for outcome in ended.values():
        assert (outcome.verdict, outcome.counts, outcome.scope) == (Verdict.BUSY, False, Scope.PROCESS)
    assert [part.supplier_message_id for part in ended[long.message_id].parts] == ["id1"]
    assert (ended[long.message_id].total, ended[waiting.message_id].parts) == (3, ())
    # What comes afterwards is sent.
    (later,) = account.submit()
    await until(lambda: len(submits) == 2)
    peer.accept(*submits[1])
    await account.ended(3)
    assert account.outcomes[-1][0].message_id == later.message_id
    await account.connector.stop(grace=0.2)
    assert len(submits) == 2


async def test_what_another_worker_may_have_taken_over_since_a_segment_was_sent_is_not_sent(peer: Peer) -> None:
    """The process stood still between two segments that it sent at once: the others used to follow."""
    asked = [-math.inf] * 100
    account = await PeerAccount(
        peer.port, queue_seconds=300, lost_until=lambda: asked.pop() if asked else time.monotonic()
    ).start()
    asked[:] = [-math.inf] * 2  # for all that wait, and for the first segment
    (long,) = account.submit(text="a" * 400)
    await account.ended(1)
    ((one, outcome),) = account.outcomes
    assert one.message_id == long.message_id
    assert (outcome.verdict, outcome.counts, outcome.scope) == (Verdict.BUSY, False, Scope.PROCESS)
    assert (len(outcome.parts), outcome.total, len(peer.got(p.SubmitSm))) == (1, 3, 1)
    await account.connector.stop(grace=0.2)


async def test_a_stop_waits_no_longer_for_sessions_that_are_leaving(peer: Peer) -> None:
    """It used to wait until each of their submits had been answered, or had timed out."""
    peer.on_submit = lambda line, pdu: None
    account = await PeerAccount(peer.port, sessions=2, window=2, response_seconds=300).start(bound=2)
    account.submit(4)
    await until(lambda: len(peer.got(p.SubmitSm)) == 4)
    account.connector.set_sessions(1)
    await asyncio.wait_for(account.connector.stop(grace=0.05), 120)
    assert [outcome.verdict for _, outcome in account.outcomes] == [Verdict.UNKNOWN] * 4
    assert peer.lines == []


async def test_a_stop_ends_though_the_supplier_is_silent_and_receipts_cannot_be_stored(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to wait for the response to its unbind, then for the receipts and for the messages, one after the
    other."""
    monkeypatch.setattr("heliograph.suppliers.smpp.connector._PARTING", 0.05)
    account = await PeerAccount(peer.port, unbind_seconds=600, response_seconds=600).start()
    account.gate = asyncio.Event()
    peer.on_submit = lambda line, pdu: line.send(receipt_pdu("id1"))
    account.submit()
    await until(lambda: account.connector._receipts._runner is not None)
    peer.silent = True
    await asyncio.wait_for(account.connector.stop(grace=0.05), 120)
    account.gate.set()
    assert [outcome.verdict for _, outcome in account.outcomes] == [Verdict.UNKNOWN]
    assert peer.got(p.Unbind)


async def test_a_mistake_does_not_end_a_link(peer: Peer) -> None:
    left = [KeyError("a mistake")]

    def lookup(name: str) -> list[str]:
        if left:
            raise left.pop()
        return ["127.0.0.1"]

    account = PeerAccount(peer.port, host="some.example", lookup=lookup)
    with capture_logs() as logged:
        await account.start()
    assert [entry["event"] for entry in logged if entry["log_level"] == "error"] == ["SMPP connect failed"]
    await account.connector.stop(grace=0.2)


async def test_a_machine_out_of_threads_does_not_end_a_link(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to give up for good, and nobody was told."""
    start = threading.Thread.start
    left = [RuntimeError("can't start new thread")]

    def begin(thread: threading.Thread) -> None:
        if left:
            raise left.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", begin)
    account = PeerAccount(peer.port, host="localhost")
    with capture_logs() as logged:
        await account.start()
    assert not [entry["event"] for entry in logged if entry["log_level"] == "error"]
    (down,) = [entry for entry in logged if entry["event"] == "SMPP down"]
    assert down["error"] == "cannot connect: can't start new thread"
    await account.connector.stop(grace=0.2)


@pytest.mark.parametrize("status", [0x05, 0x0D])
async def test_too_many_binds_is_tried_again_soon(peer: Peer, status: int) -> None:
    peer.bind_status = status
    account = PeerAccount(peer.port)
    await account.connector.start()
    await until(lambda: peer.binds >= 2)
    assert account.connector.health().sessions == 0
    assert f"0x{status:08X}" in account.connector.health().last_error
    peer.bind_status = 0
    await until(lambda: account.connector.health().sessions == 1)
    await account.connector.stop(grace=0.2)


@pytest.mark.parametrize("status", [0x0E, 0x0F, 0x53])
async def test_a_wrong_password_waits_for_an_operator(peer: Peer, status: int) -> None:
    peer.bind_status = status
    account = PeerAccount(peer.port, refused_seconds=300)
    await account.connector.start()
    await until(lambda: "every 300 s" in account.connector.health().last_error)
    assert f"0x{status:08X}" in account.connector.health().last_error
    await asyncio.sleep(0.2)
    assert peer.binds == 1
    await account.connector.stop(grace=0.2)


async def test_a_bind_without_an_answer_is_given_up(peer: Peer) -> None:
    peer.silent = True
    account = PeerAccount(peer.port, bind_seconds=0.1)
    await account.connector.start()
    await until(lambda: len(peer.got(p.BindTransceiver)) == 2)
    assert "no answer to bind" in account.connector.health().last_error
    await account.connector.stop(grace=0.2)


async def test_silence_is_asked_about_and_then_ends_the_session(peer: Peer) -> None:
    # Longer than a standstill that is not taken for one (`base/network/standstill.py`).
    account = await PeerAccount(peer.port, enquire_seconds=0.1, silence_seconds=2.0).start()
    await until(lambda: len(peer.got(p.EnquireLink)) == 2)
    assert peer.binds == 1
    peer.silent = True
    await until(lambda: len(peer.got(p.BindTransceiver)) == 2)
    await account.connector.stop(grace=0.2)


async def test_garbage_ends_the_session_and_what_came_before_it_counts(peer: Peer, account: PeerAccount) -> None:
    peer.on_submit = lambda line, pdu: line.transport.write(
        p.SubmitSmResp(pdu.sequence, 0, "good").encode() + b"\x00\x00\x00\x03garbage"
    )
    account.submit()
    (outcome,) = await account.ended()
    assert outcome.verdict is Verdict.ACCEPTED
    await until(lambda: peer.got(p.GenericNack))
    assert peer.got(p.GenericNack) == [p.GenericNack(0, 0x02)]
    await until(lambda: peer.binds == 2)


async def test_an_answer_byte_by_byte_and_two_in_a_segment(peer: Peer, account: PeerAccount) -> None:
    waiting: list[p.SubmitSm] = []
    peer.on_submit = lambda line, pdu: waiting.append(pdu)
    account.submit(3)
    await until(lambda: len(waiting) == 3)
    first = p.SubmitSmResp(waiting[0].sequence, 0, "slow").encode()
    for octet in first:
        peer.lines[0].transport.write(bytes((octet,)))
        await asyncio.sleep(0.001)
    # Responses may come in any order.
    peer.lines[0].send(p.SubmitSmResp(waiting[2].sequence, 0, "c"), p.SubmitSmResp(waiting[1].sequence, 0, "b"))
    outcomes = await account.ended(3)
    assert [outcome.parts[0].supplier_message_id for outcome in outcomes] == ["slow", "c", "b"]


async def test_a_pdu_that_does_not_end_closes(peer: Peer) -> None:
    account = await PeerAccount(peer.port, pdu_seconds=0.1).start()
    peer.lines[0].transport.write(b"\x00\x00\x00\x20\x00")
    await until(lambda: peer.binds == 2)
    await account.connector.stop(grace=0.2)


async def test_the_peer_unbinds_and_still_answers_what_it_owes(peer: Peer, account: PeerAccount) -> None:
    waiting: list[p.SubmitSm] = []
    peer.on_submit = lambda line, pdu: waiting.append(pdu)
    account.submit()
    await until(lambda: waiting)
    line = peer.lines[0]
    line.send(p.Unbind(40))
    await until(lambda: account.connector.capacity() == 0)
    line.send(p.SubmitSmResp(waiting[0].sequence, 0, "late"))
    (outcome,) = await account.ended()
    assert outcome.verdict is Verdict.ACCEPTED
    await until(lambda: peer.got(p.UnbindResp) == [p.UnbindResp(40)])
    await until(lambda: peer.binds == 2)


async def test_what_came_before_the_peers_unbind_is_answered_before_it(peer: Peer, account: PeerAccount) -> None:
    """Otherwise the peer sends it again, perhaps so much later that it counts as another message."""
    account.gate = asyncio.Event()
    line = peer.lines[0]
    line.send(receipt_pdu("1"), p.Unbind(40), p.EnquireLink(41))
    await until(lambda: peer.got(p.EnquireLinkResp))
    account.gate.set()
    await until(lambda: peer.got(p.UnbindResp))
    answers = [type(pdu) for pdu in peer.read if isinstance(pdu, p.DeliverSmResp | p.UnbindResp)]
    assert answers == [p.DeliverSmResp, p.UnbindResp]
    await until(lambda: peer.binds == 2)


# -- rate and windows --------------------------------------------------------------------------------------------------


async def test_capacity_is_the_room_in_all_windows(peer: Peer) -> None:
    account = await PeerAccount(peer.port, sessions=3, window=4).start(bound=3)
    assert account.connector.capacity() == 12
    peer.on_submit = lambda line, pdu: None
    account.submit(2)
    account.submit(1, segments=(b"a", b"b", b"c"))
    assert account.connector.capacity() == 7
    assert account.connector.health().in_flight == 5
    await account.connector.stop(grace=0.0)


async def test_the_window_is_never_exceeded(peer: Peer) -> None:
    account = await PeerAccount(peer.port, window=3).start()
    open_now: list[p.SubmitSm] = []
    most = 0

    def count(line: Line, pdu: p.SubmitSm) -> None:
        nonlocal most
        open_now.append(pdu)
        most = max(most, len(open_now))
        asyncio.get_running_loop().call_later(0.001, answer, line)

    def answer(line: Line) -> None:
        pdu = open_now.pop(0)
        line.send(p.SubmitSmResp(pdu.sequence, 0, "x"))

    peer.on_submit = count
    account.submit(50)
    await account.ended(50)
    assert most == 3
    await account.connector.stop(grace=0.2)


async def test_a_throttle_burst_slows_the_account_down_without_using_up_tries(peer: Peer) -> None:
    account = await PeerAccount(peer.port, submits_per_second=1000).start()
    peer.submit_status = 0x58
    account.submit(5)
    outcomes = await account.ended(5)
    assert {(outcome.verdict, outcome.counts) for outcome in outcomes} == {(Verdict.BUSY, False)}
    assert account.connector._bucket.rate == pytest.approx(500, rel=0.01)
    await account.connector.stop(grace=0.2)


async def test_the_rate_grows_with_the_sessions(peer: Peer) -> None:
    account = await PeerAccount(peer.port, submits_per_second=10, sessions=2).start(bound=2)
    assert account.connector._bucket.rate == 20
    account.connector.set_sessions(1)
    assert account.connector._bucket.rate == 10
    await account.connector.stop(grace=0.2)


async def test_segments_a_second_are_kept(peer: Peer) -> None:
    account = await PeerAccount(peer.port, submits_per_second=100).start()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    account.submit(10, segments=(b"a", b"b"))
    await account.ended(10)
    # 20 segments, of which 5 may leave at once.
    assert loop.time() - begun > 0.13
    await account.connector.stop(grace=0.2)


async def test_sessions_come_and_go_while_running(peer: Peer) -> None:
    account = await PeerAccount(peer.port, sessions=0).start(bound=0)
    account.connector.set_sessions(2)
    await until(lambda: account.connector.health().sessions == 2)
    peer.on_submit = lambda line, pdu: asyncio.get_running_loop().call_later(0.05, peer.accept, line, pdu)
    account.submit(6)
    account.connector.set_sessions(1)
    assert account.connector.health().sessions == 1
    assert {outcome.verdict for outcome in await account.ended(6)} == {Verdict.ACCEPTED}
    await until(lambda: len(peer.lines) == 1)
    assert len(peer.got(p.Unbind)) == 1
    await account.connector.stop(grace=0.2)


@pytest.mark.parametrize("ended", [0, 1])
async def test_the_session_to_be_given_up_is_one_that_is_not_bound(peer: Peer, ended: int) -> None:
    account = await PeerAccount(peer.port, sessions=2).start(bound=2)
    peer.bind_status = 0x05
    peer.lines[ended].transport.abort()
    await until(lambda: peer.binds > 2)
    account.connector.set_sessions(1)
    account.submit()
    assert [one.verdict for one in await account.ended()] == [Verdict.ACCEPTED]
    assert account.connector.health().sessions == 1
    assert not peer.got(p.Unbind)
    await account.connector.stop(grace=0.2)


async def test_a_transmitter_and_a_receiver(peer: Peer) -> None:
    account = await PeerAccount(peer.port, bind="pair").start()
    await until(lambda: peer.binds == 2)
    (receiver,) = [line for line in peer.lines if isinstance(line.bound, p.BindReceiver)]
    account.submit()
    await account.ended()
    receiver.send(receipt_pdu("id1"))
    await until(lambda: account.receipts)
    await account.connector.stop(grace=0.2)
    assert len(peer.got(p.Unbind)) == 2


async def test_a_session_without_its_receiver_submits_and_says_that_nothing_arrives(peer: Peer) -> None:
    answer, is_allowed = peer.answer, False

    def refuse(line: Line, pdu: p.Pdu) -> None:
        if isinstance(pdu, p.BindReceiver) and not is_allowed:
            line.send(p.BindReceiverResp(pdu.sequence, 0x0D))
            return
        answer(line, pdu)

    peer.answer = refuse  # type: ignore[method-assign]
    account = await PeerAccount(peer.port, bind="pair").start()
    account.submit()
    assert [one.verdict for one in await account.ended()] == [Verdict.ACCEPTED]
    await until(lambda: "0x0000000D" in account.connector.health().last_error)
    health = account.connector.health()
    assert (account.connector.ready(), health.sessions, health.receiving) == (True, 1, 0)
    is_allowed = True
    await until(lambda: account.connector.health().receiving == 1)
    await account.connector.stop(grace=0.2)


# -- long messages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "bodies", "esm_class"),
    [
        ("udh8", [bytes.fromhex("050003340201") + b"one", bytes.fromhex("050003340202") + b"two"], 0x40),
        ("udh16", [bytes.fromhex("06080412340201") + b"one", bytes.fromhex("06080412340202") + b"two"], 0x40),
        ("sar", [b"one", b"two"], 0),
        ("payload", [b"onetwo"], 0),
    ],
)
async def test_ways_of_sending_a_long_message(peer: Peer, way: str, bodies: list[bytes], esm_class: int) -> None:
    account = await PeerAccount(peer.port, long_messages=way).start()
    account.submit(segments=(b"one", b"two"))
    (outcome,) = await account.ended()
    sent = peer.got(p.SubmitSm)
    assert [pdu.payload for pdu in sent] == bodies
    assert {pdu.esm_class for pdu in sent} == {esm_class}
    assert [part.number for part in outcome.parts] == list(range(1, len(bodies) + 1))
    assert outcome.total == len(bodies)
    if way == "sar":
        assert [(pdu.tlvs[0x020C], pdu.tlvs[0x020E], pdu.tlvs[0x020F]) for pdu in sent] == [
            (b"\x12\x34", b"\x02", b"\x01"),
            (b"\x12\x34", b"\x02", b"\x02"),
        ]
    await account.connector.stop(grace=0.2)


@pytest.mark.parametrize(
    ("status", "verdict", "failover", "name"),
    [(0x0B, "refused", True, "ESME_RINVDSTADR"), (0x0E, "busy", False, "ESME_RINVPASWD")],
)
async def test_a_refused_segment_stops_those_behind_it(
    peer: Peer, status: int, verdict: str, failover: bool, name: str
) -> None:
    """Of an account that is refused in between, the supplier has something: it gets the rest later."""
    account = await PeerAccount(peer.port, window=1).start()

    def second_refused(line: Line, pdu: p.SubmitSm) -> None:
        peer.submit_status = status if len(peer.got(p.SubmitSm)) == 2 else 0
        peer.accept(line, pdu)

    peer.on_submit = second_refused
    account.submit(segments=(b"a", b"b", b"c", b"d"))
    (outcome,) = await account.ended()
    assert (outcome.verdict, outcome.failover, outcome.code) == (verdict, failover, f"0x{status:08X}")
    assert [(part.number, part.supplier_message_id) for part in outcome.parts] == [(1, "id1")]
    assert outcome.detail == f"segment 2 of 4: {name}"
    assert len(peer.got(p.SubmitSm)) == 2
    await account.connector.stop(grace=0.2)


async def test_all_segments_go_on_one_session_in_order(peer: Peer) -> None:
    account = await PeerAccount(peer.port, sessions=3, window=2).start(bound=3)
    seen: dict[int, list[tuple[int, bytes]]] = {}

    def remember(line: Line, pdu: p.SubmitSm) -> None:
        seen.setdefault(int(pdu.destination_addr), []).append((id(line), pdu.short_message[-1:]))
        asyncio.get_running_loop().call_later(0.002, peer.accept, line, pdu)

    peer.on_submit = remember
    for number in range(6):
        account.submit(to=str(number), segments=(b"a", b"b", b"c", b"d", b"e"))
    outcomes = await account.ended(6)
    assert {len(outcome.parts) for outcome in outcomes} == {5}
    for segments in seen.values():
        assert len({line for line, _ in segments}) == 1
        assert b"".join(text for _, text in segments) == b"abcde"
    await account.connector.stop(grace=0.2)


async def test_a_loss_between_segments(peer: Peer) -> None:
    account = await PeerAccount(peer.port, window=1).start()

    def accept_and_drop(line: Line, pdu: p.SubmitSm) -> None:
        if pdu.short_message.endswith(b"a"):
            peer.accept(line, pdu)
        else:
            line.transport.abort()

    peer.on_submit = accept_and_drop
    account.submit(segments=(b"a", b"b", b"c"))
    (outcome,) = await account.ended()
    assert (outcome.verdict, outcome.total, outcome.doubtful) == (Verdict.UNKNOWN, 3, (2,))
    assert [(part.number, part.supplier_message_id) for part in outcome.parts] == [(1, "id1")]
    await account.connector.stop(grace=0.2)


# -- stopping ----------------------------------------------------------------------------------------------------------


async def test_stopping_waits_for_open_answers_and_unbinds(peer: Peer, account: PeerAccount) -> None:
    peer.on_submit = lambda line, pdu: asyncio.get_running_loop().call_later(0.05, peer.accept, line, pdu)
    account.submit(4)
    account.submit(1, segments=tuple(b"%d" % n for n in range(12)))
    await account.connector.stop(grace=5)
    assert [outcome.verdict for _, outcome in account.outcomes] == ["accepted"] * 5
    assert isinstance(peer.read[-1], p.Unbind)
    account.submit()
    assert (await account.ended(6))[-1].verdict is Verdict.UNREACHABLE


async def test_what_is_open_after_the_grace_is_unknown(peer: Peer, account: PeerAccount) -> None:
    peer.on_submit = lambda line, pdu: None
    account.submit(12)
    await account.connector.stop(grace=0.05)
    assert sorted(outcome.verdict for _, outcome in account.outcomes) == ["unknown"] * 10 + ["unreachable"] * 2
    returned = {one.scope for _, one in account.outcomes if one.verdict is Verdict.UNREACHABLE}
    assert returned == {Scope.PROCESS}, "the supplier has failed at nothing"


async def test_stopping_answers_the_receipts_it_has(peer: Peer, account: PeerAccount) -> None:
    account.gate = asyncio.Event()
    peer.lines[0].send(receipt_pdu("1"))
    await until(lambda: account.connector._receipts._runner is not None)
    asyncio.get_running_loop().call_later(0.05, account.gate.set)
    await account.connector.stop(grace=120)
    assert [pdu.status for pdu in peer.got(p.DeliverSmResp)] == [0]


async def test_stopping_does_not_wait_for_an_address_that_does_not_answer() -> None:
    account = PeerAccount(1, reconnect_seconds=60)
    await account.connector.start()
    await asyncio.wait_for(account.connector.stop(grace=600), 120)


# -- what must not happen ----------------------------------------------------------------------------------------------


async def test_the_password_is_not_logged(peer: Peer, caplog: Any, capsys: Any) -> None:
    peer.bind_status = 0x0E
    account = PeerAccount(peer.port, secret="hunter2hunter2")
    with caplog.at_level(logging.DEBUG):
        await account.connector.start()
        await until(lambda: account.connector.health().last_error)
        await account.connector.stop(grace=0.2)
    assert peer.got(p.BindTransceiver)[0].password == "hunter2hunter2"
    printed = capsys.readouterr()
    assert "hunter2" not in caplog.text + printed.out + printed.err


async def test_a_message_that_cannot_be_written_is_refused(peer: Peer, account: PeerAccount) -> None:
    account.submit(sender="Ж")
    account.submit(segments=(b"x" * 255,))
    account.submit()
    outcomes = await account.ended(3)
    assert sorted(outcome.verdict for outcome in outcomes) == ["accepted", "refused", "refused"]


async def test_a_message_that_fails_while_it_is_written_is_not_in_doubt(
    peer: Peer, account: PeerAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to have no outcome at all, and became unknown when its lease expired."""

    def stumble(_: Submission) -> list[p.SubmitSm]:
        raise KeyError("sender")

    monkeypatch.setattr(account.connector._builder, "build", stumble)
    with capture_logs() as logged:
        (one,) = account.submit()
        (outcome,) = await account.ended()
    assert (outcome.verdict, outcome.detail) == (Verdict.UNREACHABLE, "cannot be written as SMPP: KeyError")
    assert [entry["message_id"] for entry in logged if entry["log_level"] == "error"] == [str(one.message_id)]


def test_all_of_it_on_uvloop() -> None:
    async def life() -> None:
        peer = await Peer().start()
        account = await PeerAccount(peer.port).start()
        account.submit(20)
        assert {outcome.verdict for outcome in await account.ended(20)} == {Verdict.ACCEPTED}
        peer.lines[0].send(receipt_pdu("id1"))
        await until(lambda: peer.got(p.DeliverSmResp))
        await account.connector.stop(grace=1)
        assert peer.got(p.Unbind)
        await peer.stop()

    uvloop.run(life())


async def test_an_outcome_handler_that_raises_harms_nobody_else(peer: Peer) -> None:
    seen = []

    def handler(submitted: Any, outcome: Any) -> None:
        seen.append(outcome)
        raise RuntimeError("a bug")

    async def take(items: Any) -> None:
        seen.extend(items)

    settings = {"host": "127.0.0.1", "port": peer.port, "system_id": "esme", "tls": False}
    connector = connect(Account(UUID(int=1), settings, "secret"), handler, take, take)
    await connector.start()
    assert connector.health().sessions == 0
    connector.set_sessions(1)
    await until(lambda: connector.capacity())
    for _ in range(3):
        connector.submit(submission())
    await until(lambda: len(seen) == 3)
    assert connector.capacity() == 10
    await connector.stop(grace=1)
