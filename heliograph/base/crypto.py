"""Secrets: encryption at rest ("sealing"), hashing, MACs, constant-time comparison.

The rule nobody may break: `settings.secret_key` itself encrypts nothing. Each use derives its own key from it
(HKDF-SHA256, RFC 5869) under a named purpose, so that a key for cursors opens no webhook secret.

A sealed value is `02 | key id (4) | nonce (12) | ciphertext and tag`, AES-256-GCM (NIST SP 800-38D) with random nonces:
good for 2^32 seals under one key before a repeated nonce becomes likely enough to matter. The first byte is the version
of the format. The key id says which of two secret keys opens it, so that the secret key can be changed (`rekeying.py`).
The context (which table, which row) is authenticated with the value: a sealed value that is moved to another row cannot
be decrypted there.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_VERSION = b"\x02"
_ID_BYTES = 4
_NONCE_BYTES = 12
_TAG_BYTES = 16


class Unsealable(Exception):
    """A sealed value was altered, belongs elsewhere, or was sealed with another secret key."""


class Key:
    """The key of one purpose ("webhook secrets", "cursors"). Its first part seals and signs; all parts open and verify.

    Created by `derive_key`; its repr shows none of its bytes.
    """

    __slots__ = ("_ciphers", "_parts", "id")

    def __init__(self, parts: Sequence[bytes]) -> None:
        """`parts`: 32 bytes each, one or more."""
        self._parts = tuple(parts)
        self._ciphers = {_id(part): AESGCM(part) for part in self._parts}
        #: Id of the first part: contained in everything sealed from now on.
        self.id = _id(self._parts[0])

    @property
    def ids(self) -> list[bytes]:
        """Ids of all parts, beginning with the one that seals."""
        return list(self._ciphers)

    def __repr__(self) -> str:
        return f"Key({self.id.hex()})"


def derive_key(secret_keys: str | Sequence[str], purpose: str) -> Key:
    """The key of one purpose, always the same for the same secret keys; the first of them seals.

    Derive at startup and pass the key down, so that only one place knows the secret keys.
    """
    given = [secret_keys] if isinstance(secret_keys, str) else secret_keys
    info = b"heliograph/" + purpose.encode()
    return Key([HKDF(SHA256(), length=32, salt=None, info=info).derive(one.encode()) for one in given])


def fingerprints(secret_keys: Sequence[str]) -> list[bytes]:
    """What tells secret keys apart: ids of keys derived for this purpose alone, which say nothing about the secret
    keys, nor about what is sealed."""
    return derive_key(secret_keys, "fingerprint").ids


def seal(key: Key, plaintext: bytes | bytearray, context: str) -> bytes:
    """Encrypt and authenticate with the key's first part. `context`: where the value is stored (table and id)."""
    nonce, head = os.urandom(_NONCE_BYTES), _VERSION + key.id
    return head + nonce + key._ciphers[key.id].encrypt(nonce, plaintext, head + context.encode())


def unseal(key: Key, sealed: bytes, context: str) -> bytes:
    """Decrypt what `seal` returned. Raises Unsealable if key, context or value differ."""
    if sealed[:1] != _VERSION or len(sealed) < 1 + _ID_BYTES + _NONCE_BYTES + _TAG_BYTES:
        raise Unsealable("the sealed value has an unknown form")
    head, rest = sealed[: 1 + _ID_BYTES], sealed[1 + _ID_BYTES :]
    cipher = key._ciphers.get(head[1:])
    if cipher is None:
        raise Unsealable("the value was sealed with another secret key")
    try:
        return cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], head + context.encode())
    except InvalidTag:
        raise Unsealable("the sealed value does not open with this key in this place") from None


def hash_secret(text: str) -> bytes:
    """SHA-256, 32 bytes. For our own random secrets, which need no slow hash; never for passwords."""
    return hashlib.sha256(text.encode()).digest()


class Hmac:
    """HMAC-SHA256 (RFC 2104) under one key. The two hashes have absorbed their padded key and are copied for each
    message, which takes 0.6 µs for a callback; `hmac.digest` starts from the key and takes 1.4 µs."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = (key if len(key) <= 64 else hashlib.sha256(key).digest()).ljust(64, b"\0")
        self._inner = hashlib.sha256(block.translate(_INNER))
        self._outer = hashlib.sha256(block.translate(_OUTER))

    def digest(self, message: bytes | bytearray) -> bytes:
        """The tag, 32 bytes."""
        inner = self._inner.copy()
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()


_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


def mac(key: Key, data: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104), 32 bytes, under the key's first part."""
    return hmac.digest(key._parts[0], data, "sha256")


def is_mac(key: Key, data: bytes, given: bytes | str, *, length: int = 32) -> bool:
    """Whether `given` is the first `length` bytes of a MAC of `data` under any part of the key; text is hex."""
    found = False
    for part in key._parts:
        tag = hmac.digest(part, data, "sha256")[:length]
        found |= constant_time_equal(tag.hex() if isinstance(given, str) else tag, given)
    return found


def constant_time_equal(one: bytes | str, other: bytes | str) -> bool:
    """Constant-time equality. Text is compared as UTF-8."""
    return hmac.compare_digest(_bytes(one), _bytes(other))


def _bytes(value: bytes | str) -> bytes:
    # A header may decode to lone surrogates: it must compare as different, not raise.
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


def _id(part: bytes) -> bytes:
    return hashlib.sha256(b"heliograph/key id" + part).digest()[:_ID_BYTES]
