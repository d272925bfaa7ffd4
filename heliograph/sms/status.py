"""The states of a message: one table, and the guards made from it that stand inside every UPDATE.

    accepted → sending → sent → delivered | undelivered | failed | expired | rejected | unknown
    accepted → canceled

The rule nobody may break: rank never goes down and the first final status wins. Two doors are open after an end:
`unknown` and `expired` become `delivered` when a late receipt says so. A message raises at most one contract event.
"""

from __future__ import annotations

import msgspec

from heliograph.suppliers.contract import ReceiptState


class Status(msgspec.Struct, frozen=True):
    """One state: where it may come from, and what reaching it means."""

    comes_from: tuple[str, ...]
    final: bool = False
    #: Contract event raised on arrival, if the message has raised none.
    event: str | None = None
    #: Column that keeps the time of arrival.
    stamp: str | None = None


OPEN = ("accepted", "sending", "sent")

STATUSES = {
    "accepted": Status(()),
    "sending": Status(("accepted", "sending")),
    "sent": Status(("accepted", "sending"), stamp="sent_at"),
    "delivered": Status((*OPEN, "unknown", "expired"), final=True, event="message.delivered", stamp="delivered_at"),
    "undelivered": Status(OPEN, final=True, event="message.failed", stamp="failed_at"),
    "failed": Status(OPEN, final=True, event="message.failed", stamp="failed_at"),
    "expired": Status(OPEN, final=True, event="message.failed", stamp="failed_at"),
    "rejected": Status(OPEN, final=True, event="message.failed", stamp="failed_at"),
    "canceled": Status(("accepted",), final=True),
    "unknown": Status(OPEN, final=True),
}

#: What a receipt's word makes of a message; a state that is absent moves nothing.
BY_RECEIPT = {
    ReceiptState.DELIVERED: "delivered",
    ReceiptState.UNDELIVERED: "undelivered",
    ReceiptState.EXPIRED: "expired",
    ReceiptState.REJECTED: "rejected",
    ReceiptState.FAILED: "failed",
}

#: What customers read about a failure, by its code. Never a supplier's words.
FAILURES = {
    "undelivered": "The network could not deliver the message.",
    "failed": "The message could not be sent.",
    "expired": "The message could not be delivered before its validity ended.",
    "rejected": "The network refused the message.",
    "opted_out": "The recipient has opted out of messages from this organization.",
    "sender_not_approved": "The sender was no longer approved when the message was due.",
    "destination_unreachable": "No route leads to this destination.",
}


def may_move(old: str, new: str) -> bool:
    """True if a message in `old` may become `new`."""
    return old in STATUSES[new].comes_from


def moves(old: str, new: str) -> str:
    """SQL that says the same of two expressions: `moves("m.status", "r.status")`."""
    cases = " ".join(
        f"WHEN '{name}' THEN {old} IN ({', '.join(repr(source) for source in status.comes_from)})"
        for name, status in STATUSES.items()
        if status.comes_from
    )
    return f"CASE {new} {cases} ELSE false END"
