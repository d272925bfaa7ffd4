"""What a command_status means for a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.suppliers.contract import Scope, Verdict
from heliograph.suppliers.smpp.codec.statuses import CLASSES, STATUSES, classify

ROWS = [
    # status, attempt, verdict, failover, counts, alarm, slow, rebind
    (0x01, 1, "refused", False, True, False, False, False),
    (0x02, 1, "refused", False, True, False, False, True),
    (0x04, 1, "busy", False, False, False, False, True),
    (0x08, 1, "busy", False, True, False, False, False),
    (0x08, 9, "busy", False, True, False, False, False),
    (0x0A, 1, "refused", True, True, True, False, False),
    (0x0B, 1, "refused", True, True, False, False, False),
    (0x0E, 1, "unreachable", False, False, True, False, False),
    (0x0F, 9, "unreachable", False, False, True, False, False),
    (0x53, 1, "unreachable", False, False, True, False, False),
    (0x14, 1, "busy", False, False, False, True, False),
    (0x43, 1, "refused", True, True, True, False, False),
    (0x45, 1, "busy", False, True, False, False, False),
    (0x45, 2, "refused", True, True, False, False, False),
    (0x58, 7, "busy", False, False, False, True, False),
    (0x64, 1, "busy", False, True, False, False, False),
    (0xFF, 2, "busy", False, True, False, False, False),
    (0xFF, 3, "refused", True, True, False, False, False),
    (0x400, 1, "busy", False, True, True, False, False),
    (0x4FF, 2, "refused", True, True, True, False, False),
    (0x09, 1, "busy", False, True, False, False, False),
    (0xFFFFFFFF, 2, "refused", True, True, False, False, False),
]


@pytest.mark.parametrize(
    ("status", "attempt", "verdict", "failover", "counts", "alarm", "slow", "rebind"),
    ROWS,
    ids=[f"{r[0]:#x}-{r[1]}" for r in ROWS],
)
def test_rulings(
    status: int, attempt: int, verdict: str, failover: bool, counts: bool, alarm: bool, slow: bool, rebind: bool
) -> None:
    ruling = classify(status, attempt=attempt)
    assert (ruling.verdict, ruling.failover, ruling.counts) == (verdict, failover, counts)
    assert (ruling.alarm, ruling.slow, ruling.rebind) == (alarm, slow, rebind)
    assert ruling.code == f"0x{status:08X}"


def test_a_supplier_may_mean_something_else() -> None:
    assert classify(0x45, overrides={0x45: "P"}) == classify(0x45, attempt=2, overrides={0x45: "P"})
    assert classify(0x45, overrides={0x45: "P"}).verdict is Verdict.REFUSED
    known = classify(0x401, overrides={0x401: "F"})
    assert (known.verdict, known.failover, known.alarm) == (Verdict.REFUSED, True, False)
    assert classify(0x0E, overrides={0x0E: "P"}).verdict is Verdict.REFUSED


@pytest.mark.parametrize("status", [0x45, 0x43, 0x401, 0x9999])
def test_a_code_by_which_a_supplier_refuses_its_account_refuses_no_message(status: int) -> None:
    """Such as that of no credit."""
    ruling = classify(status, attempt=9, overrides={status: "C"})
    assert (ruling.verdict, ruling.counts, ruling.alarm) == (Verdict.UNREACHABLE, False, True)
    assert ruling.scope is Scope.ACCOUNT


@pytest.mark.parametrize(("status", "scope"), [(0x0A, Scope.SENDER), (0x62, Scope.MESSAGE)])
def test_a_code_about_the_sender_or_the_validity_is_not_about_the_account(status: int, scope: Scope) -> None:
    ruling = classify(status, overrides={status: "C"})
    assert (ruling.verdict, ruling.failover, ruling.scope) == (Verdict.REFUSED, True, scope)


@pytest.mark.parametrize(
    ("status", "scope"),
    [
        (0x01, "message"), (0x0B, "message"), (0x62, "message"), (0xFE, "message"),
        (0x0A, "sender"), (0x48, "sender"), (0x45, "sender"), (0xFF, "sender"), (0x400, "sender"), (0x9999, "sender"),
        (0x08, "account"), (0x43, "account"), (0x64, "account"), (0x58, "account"), (0x101, "account"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("attempt", [1, 9])
def test_whom_a_status_speaks_of(status: int, scope: str, attempt: int) -> None:
    assert classify(status, attempt=attempt).scope == scope


def test_every_class_of_the_table_is_known() -> None:
    assert {kind for _, kind in STATUSES.values()} - {""} <= CLASSES


@given(st.integers(1, 0xFFFFFFFF), st.integers(1, 20))
def test_no_error_is_taken_for_success(status: int, attempt: int) -> None:
    ruling = classify(status, attempt=attempt)
    assert ruling.verdict in (Verdict.BUSY, Verdict.REFUSED, Verdict.UNREACHABLE)
    assert ruling.verdict is Verdict.REFUSED or not ruling.failover
