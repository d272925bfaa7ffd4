"""The address that an account's callbacks come to. Its secret part is made from the installation's secret key, so that
it need not be kept, and is the only proof of suppliers that sign nothing."""

from __future__ import annotations

import base64
import hmac
from uuid import UUID

from heliograph.base.crypto import derive_key
from heliograph.base.process.settings import Settings

#: What is called there: receipts of what was sent, and messages from handsets.
RECEIPTS, INBOUND = "receipts", "inbound"
PREFIX = "/in/sms/"
#: Octets of the secret part.
LENGTH = 18


def token_key(settings: Settings) -> bytes:
    """What the secret parts of addresses are made with; to be derived once, not for each callback."""
    return derive_key(settings.secret_key, "addresses of suppliers' callbacks")


def token(key: bytes, supplier_id: UUID) -> str:
    """The secret part of an account's address. `key`: of `token_key`."""
    digest = hmac.digest(key, supplier_id.bytes, "sha256")
    return base64.urlsafe_b64encode(digest[:LENGTH]).decode()


def address(settings: Settings, supplier_id: UUID) -> str:
    """Where an account's callbacks come to, without `/receipts` or `/inbound`; empty without a public address."""
    base = settings.public_url.rstrip("/")
    return f"{base}{PREFIX}{supplier_id}/{token(token_key(settings), supplier_id)}" if base else ""
