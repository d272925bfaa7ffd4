"""Why `heliograph up` cannot start."""

from __future__ import annotations

from heliograph.base.network.failures import reason


class UpError(Exception):
    """`up` cannot start; the message says what to do."""


def unusable(error: Exception) -> UpError:
    """That the database cannot be used, and why."""
    return UpError(f"the database cannot be used: {reason(error)}")
