"""The classes of messages and how each is treated, in one table.

The rule nobody may break: a class changes how a message is handled, never whether it is counted or what it says.
"""

from __future__ import annotations

import msgspec


class TrafficClass(msgspec.Struct, frozen=True):
    """A class of messages, and how they are treated."""

    name: str
    #: Maximum validity in seconds; None: as given with the send or by the organization.
    validity_seconds: int | None
    #: priority_flag (SMPP 3.4 §5.2.14), and whether HTTP suppliers are asked for priority: 0 or 1.
    priority: int
    #: How long to wait for a slow supplier before trying the next one, in multiples of the usual patience.
    patience: float
    #: It is not sent during the recipient's quiet hours.
    waits_for_day: bool = False


CLASSES: dict[str, TrafficClass] = {
    one.name: one
    for one in (
        # Codes are entered within minutes or requested again.
        TrafficClass("otp", 600, 1, 0.2),
        TrafficClass("transactional", None, 0, 1.0),
        TrafficClass("marketing", None, 0, 4.0, waits_for_day=True),
    )
}
#: Their names, most urgent first.
NAMES = tuple(CLASSES)


def validity(traffic_class: str, asked: int | None, usual: int | None) -> int | None:
    """The validity of a message in seconds: as `asked` with the send, otherwise the organization's `usual` one within
    the limit of its class; None: the horizon of the retry schedule."""
    if asked is not None:
        return asked
    bound = CLASSES[traffic_class].validity_seconds
    if usual is None or bound is None:
        return bound if usual is None else usual
    return min(usual, bound)
