"""The TLS side of an SMPP account. SMPP has no STARTTLS: a port speaks TLS from its first octet, or never."""

from __future__ import annotations

import ssl

from heliograph.base.network.tls import client_context
from heliograph.suppliers.smpp.settings import SmppSettings


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
