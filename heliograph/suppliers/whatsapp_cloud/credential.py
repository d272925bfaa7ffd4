"""What a call to the Graph API shows of itself: a token, and the proof that it comes from the app's own server. Pure.

The rule nobody may break: every call carries the proof (`appsecret_proof`), so that a token that leaks is of no use to
whoever has not the app's secret as well. An app whose settings demand it refuses calls without.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec


class Credential(msgspec.Struct, frozen=True):
    """A bearer token, and the app that it was made for. Its repr names neither."""

    token: str
    #: HMAC-SHA256 of the token under the app's secret, hex.
    proof: str

    def __repr__(self) -> str:
        return "Credential()"


def credential(token: str, app_secret: bytes) -> Credential:
    """The credential of a token of the app with this secret."""
    return Credential(token, hmac.new(app_secret, token.encode(), hashlib.sha256).hexdigest())


def app_credential(app_id: str, app_secret: bytes) -> Credential:
    """The app's own, which asks about tokens."""
    return credential(f"{app_id}|{app_secret.decode()}", app_secret)
