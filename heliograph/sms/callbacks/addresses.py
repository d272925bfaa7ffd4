"""The address for an account's callbacks. Its secret part is derived from the installation's secret key, so that it
need not be stored, and is the only authentication of suppliers that sign nothing."""

from __future__ import annotations

import base64
from uuid import UUID

from heliograph.base.crypto import Key, derive_key, is_mac, mac
from heliograph.base.process.settings import Settings

#: The last part of the path: receipts for sent messages, and messages from handsets.
RECEIPTS, INBOUND = "receipts", "inbound"
PREFIX = "/in/sms/"
#: Length of the secret part in octets.
LENGTH = 18


def token_key(settings: Settings) -> Key:
    """The key from which the secret parts of addresses are derived; compute it once, not for each callback."""
    return derive_key(settings.secret_keys, "addresses of suppliers' callbacks")


def token(key: Key, supplier_id: UUID) -> str:
    """The secret part of an account's address. `key`: from `token_key`."""
    return base64.urlsafe_b64encode(mac(key, supplier_id.bytes)[:LENGTH]).decode()


def is_token(key: Key, supplier_id: UUID, given: str) -> bool:
    """Whether this is the secret part of an account's address, derived from either of two secret keys."""
    try:
        raw = base64.b64decode(given.encode("ascii"), altchars=b"-_", validate=True)
    except ValueError:
        return False
    # Only one spelling is accepted: base64 allows several.
    is_ours = base64.urlsafe_b64encode(raw).decode() == given
    return is_mac(key, supplier_id.bytes, raw, length=LENGTH) and is_ours


def address(settings: Settings, supplier_id: UUID) -> str:
    """The address for an account's callbacks, without `/receipts` or `/inbound`; empty without a public address."""
    base = settings.public_url.rstrip("/")
    return f"{base}{PREFIX}{supplier_id}/{token(token_key(settings), supplier_id)}" if base else ""
