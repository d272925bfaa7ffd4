"""Why `heliograph up` cannot start."""

from __future__ import annotations

from heliograph.base.network.failures import reason


class UpError(Exception):
    """`up` cannot start; the message says what to do."""


class DatabaseUnusable(UpError):
    """The database cannot be reached or refuses us, perhaps only for now."""


def unusable(error: Exception) -> DatabaseUnusable:
    """That the database cannot be used, and why."""
    return DatabaseUnusable(f"the database cannot be used: {reason(error)}")
