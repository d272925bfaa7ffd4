"""What counts as a reason."""

from __future__ import annotations

import pytest

from heliograph.audit import reasons
from heliograph.base.errors import Invalid

NOTHING = [
    "\u200b",  # zero width space
    "\u200d\u2060\ufeff",  # joiners and the mark of byte order
    "\u00ad",  # soft hyphen
    "\u3164\uffa0\u115f\u1160",  # Hangul fillers, which are letters
    "\u2800",  # Braille's blank, which is a sign
    "\u0301",  # an accent without a letter
    "\ufe0f",  # a variation of nothing
    "\u202e\u2066",  # turns of direction
    "\U000e0041",  # a tag
    "\u00a0\u2003\u3000",  # spaces
    "\x01",
    "\ue000",  # for private use
]


@pytest.mark.parametrize("text", ["", "  ", "\n", *NOTHING])
def test_what_shows_nothing_is_no_reason(text: str) -> None:
    assert reasons.normalized(text) is None
    assert reasons.normalized(f" {text} ") is None


@pytest.mark.parametrize("text", ["x", "4711", "?", "não pagou", "دفع متأخر", "e\u0301", "未払い", "👍", "میشناسم"])
def test_what_shows_something_is_one(text: str) -> None:
    assert reasons.normalized(f"  {text}\n") == text


def test_a_reason_fits_the_audit_log() -> None:
    assert reasons.normalized("x" * 500) == "x" * 500
    assert reasons.normalized("x" * 501) is None
    assert reasons.normalized("x\0") is None


@pytest.mark.parametrize("text", NOTHING)
def test_a_reason_that_may_be_left_out_is_readable_if_it_is_given(text: str) -> None:
    reasons.check_optional("")
    reasons.check_optional(" ")
    reasons.check_optional("asked for by phone")
    if text.strip():
        with pytest.raises(Invalid):
            reasons.check_optional(text)
