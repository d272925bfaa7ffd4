"""The table of states: where each may come from, and transitions that never happen."""

from __future__ import annotations

from itertools import product

from heliograph.sms.arrivals import FAILURES
from heliograph.sms.status import BY_RECEIPT, STATUSES, may_move
from heliograph.suppliers.contract import ReceiptState

RANK = {"accepted": 0, "sent": 1}
LAST = 2


def test_rank_never_goes_down() -> None:
    for old, new in product(STATUSES, repeat=2):
        if may_move(old, new):
            assert RANK.get(new, LAST) >= RANK.get(old, LAST)


def test_only_two_ends_can_be_left_and_only_for_delivered() -> None:
    left = {(old, new) for old, new in product(STATUSES, repeat=2) if STATUSES[old].final and may_move(old, new)}
    assert left == {("unknown", "delivered"), ("expired", "delivered")}


def test_every_state_can_be_reached_and_every_open_one_can_end() -> None:
    for name, status in STATUSES.items():
        assert status.comes_from or name == "accepted"
        if not status.final:
            assert any(may_move(name, new) for new, other in STATUSES.items() if other.final)


def test_a_final_state_is_never_entered_twice() -> None:
    assert not any(may_move(name, name) for name, status in STATUSES.items() if status.final)


def test_what_a_supplier_may_have_cannot_be_canceled() -> None:
    assert [old for old in STATUSES if may_move(old, "canceled")] == ["accepted"]


def test_the_contracts_events() -> None:
    events = {name: status.event for name, status in STATUSES.items()}
    assert events == {
        "accepted": None,
        "sent": None,
        "delivered": "message.delivered",
        "undelivered": "message.failed",
        "failed": "message.failed",
        "expired": "message.failed",
        "rejected": "message.failed",
        "canceled": None,
        "unknown": None,
    }


def test_every_receipt_that_ends_something_leads_to_an_end_that_customers_can_read() -> None:
    assert set(ReceiptState) - set(BY_RECEIPT) == {ReceiptState.PENDING, ReceiptState.UNKNOWN}
    for status in BY_RECEIPT.values():
        assert STATUSES[status].final
        assert status == "delivered" or status in FAILURES
