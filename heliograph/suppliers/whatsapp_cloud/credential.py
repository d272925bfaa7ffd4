"""The credential that a call to the Graph API presents: a token, and proof that it comes from the app's server. Pure.

The rule nobody may break: every call carries the proof (`appsecret_proof`), so that a leaked token is useless to
anybody without the app's secret. Apps can be configured to refuse calls without it.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec


class Credential(msgspec.Struct, frozen=True):
    """A bearer token and its proof. Its repr shows neither."""

    token: str
    #: HMAC-SHA256 of the token under the app's secret, hex.
    proof: str

    def __repr__(self) -> str:
        return "Credential()"


def credential(token: str, app_secret: bytes) -> Credential:
    """The credential for a token of the app with this secret."""
    return Credential(token, hmac.new(app_secret, token.encode(), hashlib.sha256).hexdigest())


def app_credential(app_id: str, app_secret: bytes) -> Credential:
    """The app's own credential, for queries about tokens."""
    return credential(f"{app_id}|{app_secret.decode()}", app_secret)
