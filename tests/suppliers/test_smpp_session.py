"""The session's rules, without a socket and without a clock."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.base.histogram import bucket
from heliograph.base.process.logs import cleaned
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.session import (
    MAX_SEQUENCE,
    Answered,
    BindRefused,
    Bound,
    Closed,
    Delivered,
    Late,
    PeerUnbinds,
    Session,
    State,
    TimedOut,
    Timers,
)

TIMERS = Timers(bind=15, enquire=20, silence=10, response=60, pdu=10, unbind=5, max_timeouts=3)


def read(data: bytes) -> list[Any]:
    return [p.decode(frame) for frame in p.Framer().feed(data)]


def bound(
    window: int = 10, sequence: int = 0, bind: type[p.Bind] = p.BindTransceiver, timers: Timers = TIMERS
) -> Session:
    session = Session(window=window, timers=timers, sequence=sequence)
    session.bind(bind(system_id="esme", password="secret"), 0.0)
    (pdu,) = read(session.take())
    response = {p.BindTransceiver: p.BindTransceiverResp, p.BindTransmitter: p.BindTransmitterResp}
    kind = response.get(bind, p.BindReceiverResp)
    events = session.receive(kind(pdu.sequence, 0, "smsc").encode(), 0.0)
    assert [type(event) for event in events] == [Bound]
    return session


def answer(session: Session, sequence: int, status: int = 0, now: float = 0.0) -> list[Any]:
    return session.receive(p.SubmitSmResp(sequence, status, "1").encode(), now)


def test_a_bind_opens_the_window_and_a_receiver_has_none() -> None:
    assert bound(window=7).room == 7
    assert bound(bind=p.BindTransmitter).room == 10
    assert bound(bind=p.BindReceiver).room == 0


def test_answers_are_timed_a_hundred_times_a_second_at_most() -> None:
    session = bound()
    for context in "abc":
        session.submit(p.SubmitSm(destination_addr="1"), context, 0.0)
    first, second, third = (pdu.sequence for pdu in read(session.take()))
    assert (session.submitted, session.sent[4:8]) == (3, bytes((0, 0, 0, 4)))
    answer(session, 99, now=0.1)
    answer(session, first, now=0.5)
    answer(session, second, now=0.505)
    answer(session, third, now=3.0)
    assert session.received[12:16] == third.to_bytes(4, "big")
    took = session.took()
    assert {number: count for number, count in enumerate(took) if count} == {bucket(0.5): 1, bucket(3.0): 1}
    assert not any(session.took())


@pytest.mark.parametrize("body", [b"", b"\0", b"smsc\0"])
def test_a_refused_bind_closes(body: bytes) -> None:
    session = Session(timers=TIMERS)
    session.bind(p.BindTransceiver(system_id="esme"), 0.0)
    frame = bytearray(p.BindTransceiverResp(1, 0x05).encode() + body)
    frame[3] = len(frame)
    events = session.receive(bytes(frame), 0.0)
    assert [type(event) for event in events] == [BindRefused, Closed]
    assert session.state is State.CLOSED
    assert session.room == 0


def test_a_bind_may_be_refused_by_generic_nack() -> None:
    session = Session(timers=TIMERS)
    session.bind(p.BindTransceiver(system_id="esme"), 0.0)
    assert session.receive(p.GenericNack(1, 0x03).encode(), 0.0)[0].status == 0x03


def test_enquire_link_is_answered_before_the_bind_is() -> None:
    session = Session(timers=TIMERS)
    session.bind(p.BindTransceiver(system_id="esme"), 0.0)
    session.take()
    assert session.receive(p.EnquireLink(5).encode(), 1.0) == []
    assert read(session.take()) == [p.EnquireLinkResp(5)]


def test_sequence_numbers_wrap_and_skip_those_that_are_pending() -> None:
    session = bound(window=5, sequence=MAX_SEQUENCE - 2)
    session.submit(p.SubmitSm(), "last", 0.0)
    session.submit(p.SubmitSm(), "first", 0.0)
    assert [pdu.sequence for pdu in read(session.take())] == [MAX_SEQUENCE, 1]
    session._sequence = MAX_SEQUENCE - 1
    session.submit(p.SubmitSm(), "next", 0.0)
    assert [pdu.sequence for pdu in read(session.take())] == [2]


@settings(max_examples=60)
@given(
    st.integers(1, 6),
    st.lists(st.sampled_from(["submit", "answer", "nack", "stray", "take", "wait"]), max_size=60),
    st.data(),
)
def test_every_context_comes_back_exactly_once_and_the_window_holds(
    window: int, steps: list[str], data: st.DataObject
) -> None:
    session = bound(window=window, sequence=MAX_SEQUENCE - 20)
    now, made = 0.0, 0
    ended: Counter[Any] = Counter()
    open_: dict[int, int] = {}
    written: set[int] = set()
    for step in steps:
        events: list[Any] = []
        if step == "submit" and session.room:
            pdu = p.SubmitSm()
            session.submit(pdu, made, now)
            assert pdu.sequence not in open_
            open_[pdu.sequence] = made
            made += 1
        elif step in ("answer", "nack") and written & open_.keys():
            sequence = data.draw(st.sampled_from(sorted(written & open_.keys())))
            pdu = p.SubmitSmResp(sequence, 0, "1") if step == "answer" else p.GenericNack(sequence, 0x08)
            events = session.receive(pdu.encode(), now)
        elif step == "stray":
            events = answer(session, 4711, now=now)
            assert events == []
        elif step == "take":
            written |= {pdu.sequence for pdu in read(session.take()) if isinstance(pdu, p.SubmitSm)}
        elif step == "wait":
            now += 25.0
            events = session.receive(p.EnquireLinkResp(1).encode(), now) + session.tick(now)
        for event in events:
            if isinstance(event, Answered | TimedOut):
                ended[event.context] += 1
                open_ = {sequence: context for sequence, context in open_.items() if context != event.context}
        assert session.pending == len(open_) <= window
        if session.state is State.CLOSED:
            break
    for context, was_written in session.abandon():
        ended[context] += 1
        sequence = next(sequence for sequence, one in open_.items() if one == context)
        assert was_written == (sequence in written)
    assert ended == Counter(range(made))


def test_an_answer_that_comes_too_late_is_ignored() -> None:
    session = bound()
    session.submit(p.SubmitSm(), "a", 0.0)
    (pdu,) = read(session.take())
    session.receive(p.EnquireLink(1).encode(), 59.0)
    assert session.tick(60.0) == [TimedOut("a")]
    assert answer(session, pdu.sequence, now=61.0) == []
    assert session.state is State.BOUND


def patient(max_timeouts: int = 5) -> Session:
    """Bound; late answers count, and silence does not matter to the test."""
    return bound(timers=Timers(enquire=1e6, response=60.0, late=90.0, max_timeouts=max_timeouts))


def test_a_late_answer_comes_once_until_its_time_is_over() -> None:
    session = patient()
    for context in ("a", "b"):
        session.submit(p.SubmitSm(), context, 0.0)
    first, second = (pdu.sequence for pdu in read(session.take()))
    assert session.tick(60.0) == [TimedOut("a"), TimedOut("b")]
    assert session.room == session.window, "they no longer use the window"
    (late,) = answer(session, first, now=149.0)
    assert (type(late), late.context, late.status) == (Late, "a", 0)
    assert answer(session, first, now=149.0) == []
    session.tick(150.0)
    assert answer(session, second, now=150.0) == []


def test_a_peer_that_answers_late_keeps_its_session() -> None:
    session = patient(max_timeouts=3)
    for context in range(3):
        session.submit(p.SubmitSm(), context, 0.0)
    sequences = [pdu.sequence for pdu in read(session.take())]
    assert session.tick(60.0) == [TimedOut(0), TimedOut(1), TimedOut(2)]
    assert session.room == 0, "nothing more goes to a peer that does not answer"
    assert [type(event) for event in answer(session, sequences[1], now=80.0)] == [Late]
    assert session.room == session.window
    assert session.tick(150.0) == []
    assert session.state is State.BOUND


def test_a_peer_that_does_not_answer_at_all_loses_its_session_when_the_first_answer_is_given_up() -> None:
    session = patient(max_timeouts=3)
    for context in range(3):
        session.submit(p.SubmitSm(), context, 0.0)
    session.take()
    session.tick(60.0)
    assert session.deadline == 150.0
    assert [type(event) for event in session.tick(150.0)] == [Closed]


def test_several_timeouts_in_a_row_close_and_an_answer_between_them_does_not() -> None:
    session = bound()
    for context in range(2):
        session.submit(p.SubmitSm(), context, 0.0)
    session.submit(p.SubmitSm(), 2, 1.0)
    sequences = [pdu.sequence for pdu in read(session.take())]
    session.receive(p.EnquireLink(1).encode(), 59.0)
    assert len(session.tick(60.5)) == 2
    assert len(answer(session, sequences[2], now=60.6)) == 1
    for context in range(3):
        session.submit(p.SubmitSm(), context, 61.0)
    session.receive(p.EnquireLink(1).encode(), 120.0)
    events = session.tick(121.0)
    assert [type(event) for event in events] == [TimedOut] * 3 + [Closed]


def test_enquire_link_does_not_use_the_window_and_any_pdu_answers_it() -> None:
    session = bound(window=1)
    assert session.tick(19.9) == []
    assert session.take() == b""
    assert session.deadline == 20.0
    session.tick(20.0)
    (enquire,) = read(session.take())
    assert isinstance(enquire, p.EnquireLink)
    assert session.room == 1
    assert session.deadline == 30.0
    session.receive(p.DeliverSm(1).encode(), 29.0)
    assert session.tick(30.0) == []
    session.tick(49.0)
    assert isinstance(read(session.take())[-1], p.EnquireLink)
    assert [type(event) for event in session.tick(59.0)] == [Closed]


def test_a_peer_that_does_not_know_enquire_link_lives() -> None:
    session = bound()
    session.tick(20.0)
    (enquire,) = read(session.take())
    assert session.receive(p.GenericNack(enquire.sequence, 0x03).encode(), 21.0) == []
    assert session.state is State.BOUND


@pytest.mark.parametrize("sequence", [0, 99])
def test_a_generic_nack_for_nothing_closes(sequence: int) -> None:
    assert [type(event) for event in bound().receive(p.GenericNack(sequence, 0x02).encode(), 0.0)] == [Closed]


def test_a_generic_nack_for_a_wrong_length_answers_and_closes() -> None:
    session = bound()
    session.submit(p.SubmitSm(), "a", 0.0)
    (pdu,) = read(session.take())
    events = session.receive(p.GenericNack(pdu.sequence, 0x02).encode(), 0.0)
    assert [type(event) for event in events] == [Answered, Closed]


def test_a_wrong_length_is_nacked_with_sequence_0_and_closes() -> None:
    session = bound()
    events = session.receive(p.DeliverSm(1).encode() + b"\xff\xff\xff\xff", 0.0)
    assert [type(event) for event in events] == [Delivered, Closed]
    assert read(session.take()) == [p.GenericNack(0, 0x02)]


def test_an_unknown_command_is_nacked_and_an_unknown_answer_is_not() -> None:
    session = bound()
    session.receive(bytes.fromhex("00000010 00000a0a 00000000 00000007"), 0.0)
    session.receive(bytes.fromhex("00000010 80000a0a 00000000 00000007"), 0.0)
    session.receive(p.AlertNotification(8).encode() + p.Outbind(9).encode(), 0.0)
    session.receive(p.QuerySm(10).encode(), 0.0)
    assert read(session.take()) == [p.GenericNack(7, 0x03), p.GenericNack(10, 0x03)]
    assert session.state is State.BOUND


def test_a_pdu_that_begins_must_end() -> None:
    session = bound()
    session.receive(b"\0\0\0\x20", 5.0)
    assert session.deadline == 15.0
    session.receive(b"\0", 14.0)
    assert [type(event) for event in session.tick(15.0)] == [Closed]


def test_a_bind_and_an_unbind_have_their_time() -> None:
    session = Session(timers=TIMERS)
    session.bind(p.BindTransceiver(), 0.0)
    assert session.deadline == 15.0
    assert [type(event) for event in session.tick(15.0)] == [Closed]
    session = bound()
    session.unbind(1.0)
    assert session.deadline == 6.0
    assert [type(event) for event in session.tick(6.0)] == [Closed]


def test_unbind_lets_answers_in_and_closes_with_its_own() -> None:
    session = bound()
    session.submit(p.SubmitSm(), "a", 0.0)
    session.unbind(0.0)
    assert session.room == 0
    submit, unbind = read(session.take())
    assert [type(event) for event in answer(session, submit.sequence)] == [Answered]
    assert [type(event) for event in session.receive(p.UnbindResp(unbind.sequence).encode(), 0.0)] == [Closed]
    assert session.abandon() == []


def test_the_peers_unbind_waits_for_what_it_owes_but_not_for_ever() -> None:
    session = bound()
    session.submit(p.SubmitSm(), "a", 0.0)
    session.take()
    assert [type(event) for event in session.receive(p.Unbind(9).encode(), 1.0)] == [PeerUnbinds]
    assert (session.room, session.take()) == (0, b"")
    assert [type(event) for event in session.tick(6.0)] == [Closed]
    assert read(session.take()) == [p.UnbindResp(9)]
    assert session.abandon() == [("a", True)]


def test_after_the_end_nothing_is_said_or_heard() -> None:
    session = bound()
    session.receive(p.GenericNack(0).encode(), 0.0)
    assert session.receive(p.DeliverSm(1).encode(), 0.0) == []
    session.respond(p.DeliverSm(1), 0, 0.0)
    assert session.take() == b""
    assert session.tick(1e9) == []
    assert session.deadline == float("inf")


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_no_bytes_raise(chunks: list[bytes]) -> None:
    session = bound()
    for chunk in chunks:
        session.receive(chunk, 1.0)
        session.take()
    session.tick(100.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 3, 4, 5, 6, 9, 0x15, 0x103, 0x80000004, 0x80000005, 0x80000000]), st.binary(max_size=30)
        ),
        max_size=5,
    )
)
def test_no_body_raises(pdus: list[tuple[int, bytes]]) -> None:
    session = bound()
    for command, body in pdus:
        head = (16 + len(body)).to_bytes(4, "big") + command.to_bytes(4, "big") + b"\0\0\0\0\0\0\0\x02"
        session.receive(head + body, 1.0)
    read(session.take())


def test_the_length_that_is_none_is_shown_as_octets() -> None:
    """A web server on the port is recognized by its first octets; as a number, logs took it for a phone number."""
    session = bound()
    events = session.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n", 1.0)
    assert [type(event) for event in events] == [Closed]
    assert session.reason == "lost framing: command_length 0x48545450"
    assert cleaned(session.reason) == session.reason
