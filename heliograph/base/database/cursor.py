"""Cursors of keyset lists: the start of the next page, opaque to the client.

The rule nobody may break: a cursor works only for the organization, collection and filters it was created for. These
are not in the cursor but in its MAC, so a cursor of another organization, list or filter is refused exactly like an
altered one. The cursor itself contains only the position: the sort values of the page's last row.

Form: base64url without padding of `01 | first 16 bytes of HMAC-SHA256 | position as JSON`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.crypto import Key, is_mac, mac
from heliograph.base.errors import Invalid

_VERSION = b"\x01"
_MAC_BYTES = 16
#: Ours have about 130 characters; a longer one is not examined.
_LONGEST = 1024


def encode(
    key: Key, position: Sequence[Any], *, organization_id: UUID, collection: str, filters: Mapping[str, Any]
) -> str:
    """A cursor for `position`: the sort values of the last row shown (JSON scalars, datetimes, UUIDs).

    `key`: `crypto.derive_key(secret_key, "cursors")`. `filters`: the validated ones; a filter that is None counts as
    absent. Page size is not a filter: a client may change it between pages.
    """
    payload = msgspec.json.encode(list(position))
    tag = mac(key, _bound(payload, organization_id, collection, filters))[:_MAC_BYTES]
    return base64.urlsafe_b64encode(_VERSION + tag + payload).rstrip(b"=").decode()


def decode(key: Key, cursor: str, *, organization_id: UUID, collection: str, filters: Mapping[str, Any]) -> list[Any]:
    """The position passed to `encode`; datetimes and UUIDs come back as text. Raises Invalid on `cursor`."""
    raw = _raw(cursor)
    tag, payload = raw[1 : 1 + _MAC_BYTES], raw[1 + _MAC_BYTES :]
    bound = _bound(payload, organization_id, collection, filters)
    if raw[:1] != _VERSION or not is_mac(key, bound, tag, length=_MAC_BYTES):
        raise _refusal()
    position: list[Any] = msgspec.json.decode(payload)
    return position


def _bound(payload: bytes, organization_id: UUID, collection: str, filters: Mapping[str, Any]) -> bytes:
    given = {name: value for name, value in filters.items() if value is not None}
    # A JSON list separates the parts: no choice of names and values makes two different bindings look alike.
    binding = msgspec.json.encode([organization_id, collection, given], order="deterministic")
    return _VERSION + len(binding).to_bytes(4, "big") + binding + payload


def _raw(cursor: str) -> bytes:
    if len(cursor) > _LONGEST:
        raise _refusal()
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _refusal() from None
    # Unused bits at the end of base64 would allow several spellings of one cursor; only one is accepted.
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != cursor:
        raise _refusal()
    return raw


def _refusal() -> Invalid:
    return Invalid(("cursor", "invalid", "`cursor` was not issued for this list and these filters"))
