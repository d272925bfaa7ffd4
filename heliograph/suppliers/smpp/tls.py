"""The TLS side of an SMPP account. SMPP has no STARTTLS: a port speaks TLS from its first octet, or never."""

from __future__ import annotations

import asyncio
import os
import ssl

import structlog

from heliograph.base.network import failures
from heliograph.base.network.tls import client_context
from heliograph.suppliers.smpp.settings import SmppSettings

log = structlog.get_logger()


def tls_context(settings: SmppSettings) -> ssl.SSLContext | None:
    """The TLS context for the settings; None without TLS. Raises OSError if a file cannot be read."""
    if not settings.tls:
        return None
    context = client_context(settings.tls_ca_file or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.tls_certificate_file:
        context.load_cert_chain(settings.tls_certificate_file, settings.tls_key_file or None)
    return context


class TlsFiles:
    """The TLS context of an account. Its files are read again once they have changed: certificates are renewed while
    workers are running."""

    def __init__(self, settings: SmppSettings) -> None:
        """Raises OSError if a file cannot be read."""
        self._settings = settings
        files = (settings.tls_ca_file, settings.tls_certificate_file, settings.tls_key_file)
        self._files = [file for file in files if file]
        self._read = self._changes()
        self._context = tls_context(settings)

    async def context(self) -> ssl.SSLContext | None:
        """The context for a new connection; None without TLS. While changed files cannot be used, for example because
        only the first of two has been replaced, it is that of the earlier ones."""
        found = self._changes()
        if found != self._read:
            try:
                # In a thread: to read the system's authorities takes 25 ms, in which no other session is served.
                self._context = await asyncio.to_thread(tls_context, self._settings)
            except OSError as error:
                log.warning("TLS files cannot be used, so the earlier ones stay in use", error=failures.reason(error))
            else:
                self._read = found
        return self._context

    def _changes(self) -> list[tuple[int, int, int] | None]:
        return [_change(file) for file in self._files]


def _change(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
