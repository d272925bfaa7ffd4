"""The address that an account's callbacks come to. Its secret part is made from the installation's secret key, so that
it need not be kept, and is the only proof of suppliers that sign nothing."""

from __future__ import annotations

import base64
import hashlib
import hmac
from uuid import UUID

from heliograph.base.crypto import derive_key
from heliograph.base.process.settings import Settings

#: What is called there: receipts of what was sent, and messages from handsets.
RECEIPTS, INBOUND = "receipts", "inbound"
PREFIX = "/in/sms/"
#: Octets of the secret part.
LENGTH = 18


def token(settings: Settings, supplier_id: UUID) -> str:
    """The secret part of an account's address."""
    key = derive_key(settings.secret_key, "addresses of suppliers' callbacks")
    digest = hmac.new(key, supplier_id.bytes, hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest[:LENGTH]).decode()


def address(settings: Settings, supplier_id: UUID) -> str:
    """Where an account's callbacks come to, without `/receipts` or `/inbound`; empty without a public address."""
    base = settings.public_url.rstrip("/")
    return f"{base}{PREFIX}{supplier_id}/{token(settings, supplier_id)}" if base else ""
