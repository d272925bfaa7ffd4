"""Why `heliograph up` cannot start."""

from __future__ import annotations

import ssl


class UpError(Exception):
    """`up` cannot start; the message says what to do."""


def unusable(error: Exception) -> UpError:
    """That the database cannot be used, and why, without the words of OpenSSL's source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return UpError(f"the database cannot be used: its certificate cannot be verified: {error.verify_message}")
    return UpError(f"the database cannot be used: {error}")
