"""Secrets: encryption at rest ("sealing"), hashing, MACs, constant-time comparison.

The rule nobody may break: `settings.secret_key` itself encrypts nothing. Each use derives its own key from it
(HKDF-SHA256, RFC 5869) under a named purpose, so that a key for cursors opens no webhook secret.

A sealed value is `01 | nonce (12) | ciphertext and tag`, AES-256-GCM (NIST SP 800-38D) with random nonces: good for
2^32 seals under one key before a repeated nonce becomes likely enough to matter. The first byte is the version of the
format. The context (which table, which row) is authenticated with the value: a sealed value that is moved to another
row cannot be decrypted there.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_VERSION = b"\x01"
_NONCE_BYTES = 12
_TAG_BYTES = 16


class Unsealable(Exception):
    """A sealed value was altered, belongs elsewhere, or was sealed with another secret key."""


def derive_key(secret_key: str, purpose: str) -> bytes:
    """32 bytes for one purpose ("webhook secrets", "cursors"), always the same for the same secret key.

    Derive at startup and pass the key down, so that only one place knows the secret key.
    """
    return HKDF(SHA256(), length=32, salt=None, info=b"heliograph/" + purpose.encode()).derive(secret_key.encode())


def seal(key: bytes, plaintext: bytes | bytearray, context: str) -> bytes:
    """Encrypt and authenticate. `key`: 32 bytes of `derive_key`; `context`: where the value is kept, table and id."""
    nonce = os.urandom(_NONCE_BYTES)
    return _VERSION + nonce + _cipher(key).encrypt(nonce, plaintext, _VERSION + context.encode())


def unseal(key: bytes, sealed: bytes, context: str) -> bytes:
    """Decrypt what `seal` returned. Raises Unsealable if key, context or value differ."""
    if sealed[:1] != _VERSION or len(sealed) < 1 + _NONCE_BYTES + _TAG_BYTES:
        raise Unsealable("the sealed value has an unknown form")
    nonce, ciphertext = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
    try:
        return _cipher(key).decrypt(nonce, ciphertext, _VERSION + context.encode())
    except InvalidTag:
        raise Unsealable("the sealed value does not open with this key in this place") from None


def hash_secret(text: str) -> bytes:
    """SHA-256, 32 bytes. For our own random secrets, which need no slow hash; never for passwords."""
    return hashlib.sha256(text.encode()).digest()


def mac(key: bytes, data: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104), 32 bytes."""
    return hmac.digest(key, data, "sha256")


def constant_time_equal(one: bytes | str, other: bytes | str) -> bool:
    """Constant-time equality. Text is compared as UTF-8."""
    return hmac.compare_digest(_bytes(one), _bytes(other))


def _bytes(value: bytes | str) -> bytes:
    # A header can hold anything that decodes as a lone surrogate: it must compare as different, not raise.
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value


@lru_cache(maxsize=16)
def _cipher(key: bytes) -> AESGCM:
    return AESGCM(key)
