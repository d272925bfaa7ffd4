"""Why a connection to a supplier failed, worded for the operator who has to correct it. Workers' sessions and the test
of a connection say it in the same words.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from heliograph.base.network.failures import NO_TLS, reason
from heliograph.base.sentences import Sentence, quoted, said

CLOSED = said("the connection was closed")


class TlsFileUnusable(OSError):
    """A file that an account's TLS settings name cannot be used. `words`: which, and why."""

    def __init__(self, setting: str, why: Sentence) -> None:
        self.words = said("%(setting)s cannot be used: %(why)s", setting=setting, why=why)
        super().__init__(str(self.words))

    @classmethod
    def of(cls, setting: str, error: OSError, otherwise: Sentence) -> TlsFileUnusable:
        """`otherwise`: what OpenSSL means, whatever it says."""
        return cls(setting, otherwise if isinstance(error, ssl.SSLError) else quoted(reason(error)))


def in_words(error: BaseException, *, limit: float | None = None) -> Sentence:
    """What went wrong. `limit`: the seconds that were given for it."""
    match error:
        case TlsFileUnusable():
            return error.words
        case TimeoutError() if limit is not None:
            return said("no answer within %(seconds)s s", seconds=f"{limit:g}")
        case ssl.SSLCertVerificationError():
            words = error.verify_message or error.reason or str(error)
            return said("its certificate cannot be verified: %(why)s", why=words.removesuffix("."))
        case ssl.SSLError():
            return _tls(error)
        case socket.gaierror(errno=socket.EAI_AGAIN):
            return said("its name cannot be resolved now: check this machine's DNS, and try again")
        case socket.gaierror():
            return said("there is no such host: check its name, and this machine's DNS")
        case ConnectionRefusedError():
            return said("nothing is listening there: check host and port")
        case asyncio.IncompleteReadError() | ConnectionError():
            return CLOSED
        case OSError():
            return quoted(error.strerror or str(error) or type(error).__name__)
    return quoted(str(error) or type(error).__name__)


def _tls(error: ssl.SSLError) -> Sentence:
    code = error.reason or str(error)
    # Before a session, an end without TLS's own is no TLS either.
    if code in (*NO_TLS, "UNEXPECTED_EOF_WHILE_READING"):
        return said("the server does not speak TLS: check the port, or choose a connection without TLS")
    words = code.lower().replace("_", " ")
    # With TLS 1.3 it comes after the handshake, as the first thing that is read.
    if "_ALERT_" in code and ("CERTIFICATE" in code or code.endswith("UNKNOWN_CA")):
        return said("the server wants another client certificate: check tls_certificate_file (%(why)s)", why=words)
    return said("no TLS session: %(why)s", why=words)
