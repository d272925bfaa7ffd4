"""Signatures of webhook attempts, for the sender and for receivers.

The rule nobody may break: a signature covers the raw body as sent, and every attempt is signed afresh with its own
timestamp; only the event id stays the same.

A secret is `whsec_` and the base64 of 32 random bytes. Two schemes are sent side by side; they use different bytes
of it as their HMAC-SHA256 key:

| | the service's own | Standard Webhooks |
|---|---|---|
| headers | `x-service-timestamp`, `x-service-signature` | `webhook-id`, `webhook-timestamp`, `webhook-signature` |
| key | the whole secret as shown, `whsec_` included, as UTF-8 | the 32 bytes that the part after `whsec_` decodes to |
| signed | timestamp header + `.` + body | id header + `.` + timestamp header + `.` + body |
| timestamp | ISO 8601, `2026-03-01T12:00:00.000Z` | Unix seconds |
| signature | `v1=` + hex | `v1,` + base64 |

While a secret is being rotated an endpoint has several. `x-service-signature` holds one value, so it is made with the
newest; `webhook-signature` is a list by its specification and has one signature for each, newest first, separated by a
space. A receiver that verifies `x-service-signature` accepts both secrets during the overlap.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from heliograph.base.crypto import Hmac, constant_time_equal
from heliograph.base.database import clock

PREFIX = "whsec_"
#: A receiver refuses a timestamp that differs from its own clock by more than this, either way; seconds.
TOLERANCE_SECONDS = 300
#: Number of headers that an attempt gets from here.
LINES = 7

#: Why a callback is not genuine.
Problem = Literal["malformed timestamp", "timestamp out of tolerance", "unknown version", "wrong signature"]


def new_secret() -> str:
    """A new secret: `whsec_` and the base64 of 32 random bytes, 50 characters."""
    return PREFIX + base64.b64encode(os.urandom(32)).decode()


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """The value of `x-service-signature` for this value of `x-service-timestamp`: `v1=` and 64 hex digits."""
    return _sign(Hmac(secret.encode()), timestamp, body)


def sign_standard(secret: str, event_id: str, timestamp: str, body: bytes) -> str:
    """One signature of `webhook-signature`: `v1,` and base64. Raises ValueError if `secret` is not one of ours."""
    return _sign_standard(Hmac(_standard_key(secret)), event_id, timestamp, body)


def headers(secrets: Sequence[str], *, event_id: str, request_id: str, body: bytes, at: datetime) -> dict[str, str]:
    """The identifying and signing headers of one attempt, names in lower case.

    `secrets`: newest first, at least one. `at`: when the attempt starts, with a zone.
    """
    return Signer(secrets).headers(event_id=event_id, request_id=request_id, body=body, at=at)


class Signer:
    """`headers` for many attempts with the same secrets, at a third of the cost: the keys are prepared once, and
    timestamps are formatted once for attempts with the same `at` object."""

    __slots__ = ("_at", "_own", "_seconds", "_standard", "_timestamp")

    def __init__(self, secrets: Sequence[str]) -> None:
        """`secrets`: newest first, at least one. Raises ValueError if one is not ours."""
        self._own = Hmac(secrets[0].encode())
        self._standard = [Hmac(_standard_key(secret)) for secret in secrets]
        self._at: datetime | None = None

    def headers(self, *, event_id: str, request_id: str, body: bytes, at: datetime) -> dict[str, str]:
        """Like the function of this name."""
        timestamp, seconds, own, standard = self._signed(event_id, body, at)
        return {
            "x-service-timestamp": timestamp,
            "x-service-signature": own,
            "x-service-event-id": event_id,
            "x-request-id": request_id,
            "webhook-id": event_id,
            "webhook-timestamp": seconds,
            "webhook-signature": standard,
        }

    def lines(self, *, event_id: str, request_id: str, body: bytes, at: datetime) -> str:
        """The same seven (LINES) as they appear in a request's head, each with its line end. The sender counts the
        lines: `request_id` is not checked here."""
        timestamp, seconds, own, standard = self._signed(event_id, body, at)
        return (
            f"x-service-timestamp: {timestamp}\r\nx-service-signature: {own}\r\nx-service-event-id: {event_id}\r\n"
            f"x-request-id: {request_id}\r\nwebhook-id: {event_id}\r\nwebhook-timestamp: {seconds}\r\n"
            f"webhook-signature: {standard}\r\n"
        )

    def _signed(self, event_id: str, body: bytes, at: datetime) -> tuple[str, str, str, str]:
        if at is not self._at:
            self._at, self._timestamp, self._seconds = at, clock.iso(at), str(int(at.timestamp()))
        timestamp, seconds = self._timestamp, self._seconds
        standard = " ".join([_sign_standard(key, event_id, seconds, body) for key in self._standard])
        return timestamp, seconds, _sign(self._own, timestamp, body), standard


class Verifier:
    """`verify` for many callbacks with the same secrets."""

    __slots__ = ("_keys",)

    def __init__(self, secrets: Sequence[str]) -> None:
        self._keys = [Hmac(secret.encode()) for secret in secrets]

    def verify(self, *, timestamp: str, signature: str, body: bytes, now: datetime) -> Problem | None:
        """Like the function of this name."""
        return _verify(self._keys, timestamp, signature, body, now)


def verify(secrets: Sequence[str], *, timestamp: str, signature: str, body: bytes, now: datetime) -> Problem | None:
    """Whether `x-service-timestamp` and `x-service-signature` make this body genuine: None, or what is wrong.

    `secrets`: all that are accepted, two during a rotation. A difference of exactly five minutes still passes.
    """
    return _verify([Hmac(secret.encode()) for secret in secrets], timestamp, signature, body, now)


def _verify(keys: Sequence[Hmac], timestamp: str, signature: str, body: bytes, now: datetime) -> Problem | None:
    try:
        sent = datetime.fromisoformat(timestamp)
    except ValueError:
        return "malformed timestamp"
    if sent.tzinfo is None:
        return "malformed timestamp"
    if abs((now - sent).total_seconds()) > TOLERANCE_SECONDS:
        return "timestamp out of tolerance"
    if not signature.startswith("v1="):
        return "unknown version"
    return _any_equal([_sign(key, timestamp, body) for key in keys], [signature])


def verify_standard(
    secrets: Sequence[str], *, event_id: str, timestamp: str, signature: str, body: bytes, now: datetime
) -> Problem | None:
    """The same for the `webhook-…` headers. One valid signature in the list is enough."""
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        return "malformed timestamp"
    if abs(now.timestamp() - int(timestamp)) > TOLERANCE_SECONDS:
        return "timestamp out of tolerance"
    listed = [one for one in signature.split(" ") if one.startswith("v1,")]
    if not listed:
        return "unknown version"
    return _any_equal([sign_standard(secret, event_id, timestamp, body) for secret in secrets], listed)


def _sign(key: Hmac, timestamp: str, body: bytes) -> str:
    return "v1=" + key.digest(timestamp.encode() + b"." + body).hex()


def _sign_standard(key: Hmac, event_id: str, timestamp: str, body: bytes) -> str:
    digest = key.digest(f"{event_id}.{timestamp}.".encode() + body)
    return "v1," + binascii.b2a_base64(digest, newline=False).decode()


def _any_equal(expected: Sequence[str], given: Sequence[str]) -> Problem | None:
    # Every pair is compared, so that the duration does not reveal which secret came close.
    matches = [constant_time_equal(one, other) for one in expected for other in given]
    return None if any(matches) else "wrong signature"


def _standard_key(secret: str) -> bytes:
    if not secret.startswith(PREFIX):
        raise ValueError("a webhook secret starts with whsec_")
    return binascii.a2b_base64(secret[len(PREFIX) :], strict_mode=True)
