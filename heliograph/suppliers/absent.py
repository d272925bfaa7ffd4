"""The connector of an account that cannot be used at all because its settings or secret cannot be read."""

from __future__ import annotations

from heliograph.base.sentences import quoted
from heliograph.suppliers.contract import Health, Submission


class Absent:
    """Stands in for a connector that cannot be created (yet): messages that only this supplier carries wait."""

    def __init__(self, error: str) -> None:
        self.error = quoted(error)

    async def start(self) -> None:
        """Nothing to start."""

    def ready(self) -> bool:
        return False

    def capacity(self) -> int:
        return 0

    def parts(self, submission: Submission) -> int:
        raise AssertionError("it has no capacity")

    def billed(self, submission: Submission) -> int:
        raise AssertionError("it has no capacity")

    def submit(self, submission: Submission) -> None:
        raise AssertionError("it has no capacity")

    def set_sessions(self, count: int) -> None:
        """There are no sessions."""

    def slow(self, pause: float) -> None:
        """Nothing to slow down."""

    def health(self) -> Health:
        return Health(sessions=0, in_flight=0, last_error=self.error)

    async def stop(self, *, grace: float) -> None:
        """Nothing to stop."""
