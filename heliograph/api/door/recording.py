"""The entry of a request in the log of requests."""

from __future__ import annotations

import time

from heliograph.accounts.requests import IdempotencyConflict
from heliograph.api.door.operation import Call
from heliograph.api.shapes import envelope
from heliograph.base.ids import uuid7
from heliograph.requests import Entry, blanking

#: The headers that say whether a response is new or was replayed.
STORED = (b"x-idempotency-status", b"stored")
REPLAYED = (b"x-idempotency-status", b"replayed")


def entry_of(call: Call, status: int, code: str, headers: envelope.Headers, body: bytes, began: float) -> Entry | None:
    """The entry for the log of requests, or None if it is only counted. An accepted send already has a row, its
    message's."""
    actor, operation = call.actor, call.operation
    is_plain = not operation.mutates or (operation.own_commit and REPLAYED not in headers)
    if not code and is_plain:
        call.services.log.count(actor.organization_id, actor.mode, operation.id, status)
        return None
    return Entry(
        organization_id=actor.organization_id,
        id=uuid7(),
        mode=actor.mode,
        key_id=actor.key_id,
        method=call.method,
        path=blanking.path(operation.path, call.parameters),
        operation=operation.id,
        status=status,
        error_code=code,
        duration_ms=round((time.monotonic() - began) * 1000),
        address=call.address,
        agent=call.device,
        request_id=call.request_id,
        idempotency="replayed"
        if REPLAYED in headers
        else "stored"
        if STORED in headers
        else "conflict"
        if code == IdempotencyConflict.code
        else "",
        key_hash=call.key_hash,
        body=call.raw,
        answer=body if code else b"",
    )
