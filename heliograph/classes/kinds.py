"""The classes of messages and their consequences, in one table.

The rule nobody may break: a class changes how a message is handled, never whether it is counted or what it says.
"""

from __future__ import annotations

import msgspec


class TrafficClass(msgspec.Struct, frozen=True):
    """What a message is, and what follows from that."""

    name: str
    #: Longest time that it is worth delivering, seconds; None: what its send or its organization says.
    validity_seconds: int | None
    #: SMPP 3.4 §5.2.14, and whether suppliers over HTTP are asked to hurry: 0 or 1.
    priority: int
    #: How long it waits for a slow supplier before the next one is asked, in multiples of the usual patience.
    patience: float
    #: It is not sent while it is quiet where its recipient is.
    waits_for_day: bool = False


CLASSES: dict[str, TrafficClass] = {
    one.name: one
    for one in (
        # Codes are entered within minutes or asked for again.
        TrafficClass("otp", 600, 1, 0.2),
        TrafficClass("transactional", None, 0, 1.0),
        TrafficClass("marketing", None, 0, 4.0, waits_for_day=True),
    )
}
#: Their names, most urgent first.
NAMES = tuple(CLASSES)


def validity(traffic_class: str, asked: int | None, usual: int | None) -> int | None:
    """Seconds that a message is worth delivering: as its send `asked`, or else what is `usual` for its organization
    within the bound of its class; None: the horizon of the retry schedule."""
    if asked is not None:
        return asked
    bound = CLASSES[traffic_class].validity_seconds
    return min((one for one in (usual, bound) if one is not None), default=None)
