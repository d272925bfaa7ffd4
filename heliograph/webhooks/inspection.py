"""Inspection of a delivery: what was posted, header by header, and how its signature is made.

The rule nobody may break: users who may not see texts and full numbers get `masked` bodies, for which no signature can
be shown; a secret is shown to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from heliograph.webhooks.delivery import signing
from heliograph.webhooks.delivery.attempts import TEST, body_of
from heliograph.webhooks.delivery.evidence import StoredEvidence
from heliograph.webhooks.recording.feed import Recorded

#: Members of a body that hold a person's number or user id, and those that hold text somebody wrote.
_NUMBERS, _TEXTS = frozenset({"to", "from", "phone"}), frozenset({"text"})


class SentRequest(msgspec.Struct, frozen=True):
    """A request. `signed`: the input of the signature; `is_genuine`: whether one of the current secrets produces the
    same signature. `is_copy`: the headers are those that went out; otherwise they were reconstructed, without a
    signature if no secret can be opened."""

    headers: list[tuple[str, str]]
    body: str
    timestamp: str
    signature: str
    is_genuine: bool
    is_copy: bool

    @property
    def signed(self) -> str:
        return f"{self.timestamp}.{self.body}"


def sent(event: Recorded, kept: StoredEvidence | None, started_at: Any, secrets: Sequence[str]) -> SentRequest:
    """What an attempt that began at `started_at` posted. `kept`: the evidence it left, if any."""
    text = body(event)
    headers: list[tuple[str, str]]
    if kept is not None:
        parts = [line.partition(": ") for line in kept.sent.split("\r\n") if line]
        headers = [(name, value) for name, _, value in parts]
    elif not secrets:
        headers = [("content-type", "application/json")]
    else:
        made = signing.headers(
            secrets, event_id=str(event.id), request_id=event.request_id, body=text.encode(), at=started_at
        )
        headers = [*made.items(), ("content-type", "application/json")]
    known = dict(headers)
    timestamp, signature = known.get("x-service-timestamp", ""), known.get("x-service-signature", "")
    is_genuine = any(signing.sign(secret, timestamp, text.encode()) == signature for secret in secrets)
    return SentRequest(headers, text, timestamp, signature, is_genuine, kept is not None)


def body(event: Recorded) -> str:
    """What is posted for an event."""
    return body_of(str(event.id), event.kind, event.request_id, event.data, event.created_at)


def masked(event: Recorded) -> str:
    """The body without texts and full numbers. Tests and examples contain no personal data."""
    text = body(event)
    return text if event.kind.startswith(TEST) else masked_body(text)


def masked_body(text: str) -> str:
    """A body without texts and full numbers."""
    return msgspec.json.encode(_masked(msgspec.json.decode(text))).decode()


def _masked(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _masked(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner, name) for inner in value]
    if isinstance(value, str) and value and name in _NUMBERS:
        return f"••• {value[-4:]}"
    return "•••" if isinstance(value, str) and name in _TEXTS else value
