"""Sealing, keys, comparison."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.crypto import (
    Unsealable,
    constant_time_equal,
    derive_key,
    hash_secret,
    mac,
    seal,
    unseal,
)

KEY = derive_key("a secret key of 32 characters....", "webhook secrets")


@given(st.binary(max_size=300), st.text(max_size=50))
def test_what_was_sealed_opens(plaintext: bytes, context: str) -> None:
    assert unseal(KEY, seal(KEY, plaintext, context), context) == plaintext


def test_a_seal_shows_nothing_and_is_never_the_same_twice() -> None:
    one, other = seal(KEY, b"whsec_secret", "row 1"), seal(KEY, b"whsec_secret", "row 1")
    assert one != other
    assert b"whsec" not in one
    assert one[0] == 1
    assert len(one) == 1 + 12 + len(b"whsec_secret") + 16


def test_nothing_altered_opens() -> None:
    sealed = seal(KEY, b"secret", "row 1")
    for at in range(len(sealed)):
        for bit in (1, 128):
            altered = sealed[:at] + bytes([sealed[at] ^ bit]) + sealed[at + 1 :]
            with pytest.raises(Unsealable):
                unseal(KEY, altered, "row 1")
    for length in range(len(sealed)):
        with pytest.raises(Unsealable):
            unseal(KEY, sealed[:length], "row 1")


def test_nothing_opens_elsewhere_or_with_another_key() -> None:
    sealed = seal(KEY, b"secret", "webhook_endpoints/1")
    with pytest.raises(Unsealable):
        unseal(KEY, sealed, "webhook_endpoints/2")
    for key in (derive_key("another key of 32 characters.....", "webhook secrets"), derive_key("a", "cursors")):
        with pytest.raises(Unsealable):
            unseal(key, sealed, "webhook_endpoints/1")


def test_each_purpose_has_its_own_key_and_it_never_changes() -> None:
    assert derive_key("k" * 32, "cursors") != derive_key("k" * 32, "webhook secrets")
    assert derive_key("k" * 32, "cursors") == derive_key("k" * 32, "cursors")
    # RFC 5869 written out with an empty salt: sealed values must still open after an upgrade.
    extracted = hmac.digest(b"\0" * 32, b"k" * 32, "sha256")
    assert derive_key("k" * 32, "cursors") == hmac.digest(extracted, b"heliograph/cursors\x01", "sha256")


def test_hash_and_mac_are_the_plain_ones() -> None:
    assert hash_secret("hg_live_é") == hashlib.sha256("hg_live_é".encode()).digest()
    # RFC 4231 §4.3
    expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert mac(b"Jefe", b"what do ya want for nothing?").hex() == expected


def test_comparison_takes_text_and_bytes() -> None:
    assert constant_time_equal("a", b"a")
    assert constant_time_equal("é", "é")
    assert not constant_time_equal("a", "b")
    assert not constant_time_equal("\udcff", "a")
    assert not constant_time_equal("", b"a")
