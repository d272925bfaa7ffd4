"""Reports receipts and messages from handsets that cannot be decoded. They are refused for good, so that the supplier
does not repeat them forever; nothing else would show that they are lost."""

from __future__ import annotations

from time import monotonic

import structlog

from heliograph.suppliers.smpp.session import Unreadable

log = structlog.get_logger(__name__)

#: Minimum seconds between two reports.
SAY_EVERY = 60.0


class UnreadableReport:
    """Reports those of one link, the first at once."""

    def __init__(self, link: str) -> None:
        self._link = link
        self._count = 0
        self._said_at = float("-inf")

    def note(self, event: Unreadable) -> None:
        """One was refused."""
        self._count += 1
        if monotonic() - self._said_at < SAY_EVERY:
            return
        log.warning("smpp_unreadable", link=self._link, pdu=event.command, reason=event.reason, count=self._count)
        self._count, self._said_at = 0, monotonic()
