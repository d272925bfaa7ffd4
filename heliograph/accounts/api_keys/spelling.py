"""The format of a key: `hg_live_` or `hg_test_`, 30 random base62 characters, and 6 that hold the CRC32 of everything
before them, so that typos and guesses are refused without querying the database.
"""

from __future__ import annotations

import secrets
import zlib

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#: Length of the prefix that tells live keys from test keys.
PREFIX_LENGTH = len("hg_live_")
_RANDOM = 30
_CHECK = 6
_LENGTH = PREFIX_LENGTH + _RANDOM + _CHECK


def new_secret(mode: str) -> str:
    """A new secret for mode "live" or "test": 44 characters, 178 random bits."""
    head = f"hg_{mode}_" + "".join(secrets.choice(_BASE62) for _ in range(_RANDOM))
    return head + _check_characters(head)


def is_well_formed(secret: str) -> bool:
    """True if it has the format of our keys and a valid checksum."""
    return (
        len(secret) == _LENGTH
        and secret.isascii()
        and secret.startswith(("hg_live_", "hg_test_"))
        and secret[-_CHECK:] == _check_characters(secret[:-_CHECK])
    )


def _check_characters(head: str) -> str:
    number = zlib.crc32(head.encode())
    characters = ""
    for _ in range(_CHECK):
        number, digit = divmod(number, 62)
        characters = _BASE62[digit] + characters
    return characters
