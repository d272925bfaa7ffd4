"""Sealing, keys, comparison."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.crypto import (
    Key,
    Unsealable,
    constant_time_equal,
    derive_key,
    hash_secret,
    is_mac,
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
    assert one[0] == 2
    assert len(one) == 1 + 4 + 12 + len(b"whsec_secret") + 16


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
    assert mac(derive_key("k" * 32, "cursors"), b"") != mac(derive_key("k" * 32, "webhook secrets"), b"")
    assert derive_key("k" * 32, "cursors").id == derive_key("k" * 32, "cursors").id
    # RFC 5869 written out with an empty salt: sealed values must still open after an upgrade.
    extracted = hmac.digest(b"\0" * 32, b"k" * 32, "sha256")
    derived = hmac.digest(extracted, b"heliograph/cursors\x01", "sha256")
    assert mac(derive_key("k" * 32, "cursors"), b"data") == hmac.digest(derived, b"data", "sha256")


OLD, NEW = "the old secret key, long enough....", "the new secret key, long enough...."


def test_two_secret_keys_open_and_verify_and_the_first_seals_and_signs() -> None:
    old, both, new = (derive_key(keys, "webhook secrets") for keys in (OLD, (NEW, OLD), NEW))
    before, after = seal(old, b"secret", "row 1"), seal(both, b"secret", "row 1")
    assert before[1:5] == old.id != after[1:5] == both.id == new.id
    assert unseal(both, before, "row 1") == unseal(both, after, "row 1") == unseal(new, after, "row 1") == b"secret"
    for key, sealed in ((old, after), (new, before)):
        with pytest.raises(Unsealable, match="another secret key"):
            unseal(key, sealed, "row 1")
    # The id is authenticated: it cannot be changed to that of the other key.
    with pytest.raises(Unsealable):
        unseal(both, before[:1] + new.id + before[5:], "row 1")
    signed = mac(old, b"data")
    assert is_mac(both, b"data", signed)
    assert is_mac(both, b"data", signed.hex())
    assert is_mac(both, b"data", mac(both, b"data")[:16], length=16)
    assert mac(both, b"data") == mac(new, b"data")
    for wrong in (mac(new, b"other"), signed[:16], b"", "", signed.hex()[:32], "\udcff"):
        assert not is_mac(both, b"data", wrong)
    assert not is_mac(new, b"data", signed)
    assert OLD not in repr(both)


def test_hash_and_mac_are_the_plain_ones() -> None:
    assert hash_secret("hg_live_é") == hashlib.sha256("hg_live_é".encode()).digest()
    # RFC 4231 §4.3. HMAC itself pads a short key with zeros.
    expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert mac(Key([b"Jefe".ljust(32, b"\0")]), b"what do ya want for nothing?").hex() == expected


def test_comparison_takes_text_and_bytes() -> None:
    assert constant_time_equal("a", b"a")
    assert constant_time_equal("é", "é")
    assert not constant_time_equal("a", "b")
    assert not constant_time_equal("\udcff", "a")
    assert not constant_time_equal("", b"a")
