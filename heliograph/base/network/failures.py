"""Why a connection, a file or a database failed, worded for people."""

from __future__ import annotations

import os
import socket
import ssl

import asyncpg

#: OpenSSL's reasons for an answer that is not TLS.
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


def reason(error: BaseException) -> str:
    """Why something failed, in the system's words: without error number, path, or details of the failed call."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be verified: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and getattr(error, "reason", None) in NO_TLS:
        return "the server does not speak TLS on this port"
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return "it can only be read: it is a standby, so use the primary's address, or it was set read-only"
    # The number of a TLS error is OpenSSL's, not the system's.
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    return str(error).splitlines()[0] if str(error) else type(error).__name__
