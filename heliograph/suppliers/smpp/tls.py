"""The TLS side of an SMPP account. SMPP has no STARTTLS: a port speaks TLS from its first octet, or never."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Any

import structlog

from heliograph.base.network.tls import client_context
from heliograph.base.process.settings import SettingsError
from heliograph.base.sentences import Sentence, quoted, said
from heliograph.suppliers.failures import TlsFileUnusable
from heliograph.suppliers.smpp.settings import SmppSettings, settings_from

log = structlog.get_logger()


def tls_context(settings: SmppSettings) -> ssl.SSLContext | None:
    """The TLS context for the settings; None without TLS. Raises TlsFileUnusable."""
    return new_context(settings) if settings.tls else None


def new_context(settings: SmppSettings) -> ssl.SSLContext:
    """The TLS context for settings with TLS. Raises TlsFileUnusable."""
    try:
        context = client_context(settings.tls_ca_file or None)
    except OSError as error:
        raise TlsFileUnusable.of("tls_ca_file", error, said("it contains no certificate")) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.tls_certificate_file:
        files = settings.tls_certificate_file, settings.tls_key_file
        names = ", ".join(
            name for name, file in zip(("tls_certificate_file", "tls_key_file"), files, strict=True) if file
        )
        try:
            context.load_cert_chain(files[0], files[1] or None, password=partial(_no_passphrase, names))
        except TlsFileUnusable:
            raise
        except OSError as error:
            unpaired = said("no certificate and key in PEM format that belong together")
            raise TlsFileUnusable.of(names, error, unpaired) from None
    return context


def unusable(values: Mapping[str, Any]) -> Sentence:
    """Why the files that an account's settings name cannot be used; "": they can."""
    try:
        tls_context(settings_from(values))
    except TlsFileUnusable as error:
        return error.words
    except SettingsError:  # checked when it was added
        pass
    return quoted("")


def _no_passphrase(names: str) -> str:
    """OpenSSL would ask for it on the terminal, and nothing else be done until somebody enters it."""
    raise TlsFileUnusable(names, said("the key is encrypted"))


class TlsFiles:
    """The TLS context of an account. Its files are read again once they have changed: certificates are renewed while
    workers are running."""

    def __init__(self, settings: SmppSettings) -> None:
        """Raises TlsFileUnusable."""
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
            except TlsFileUnusable as error:
                log.warning("TLS files cannot be used, so the earlier ones stay in use", error=str(error))
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
