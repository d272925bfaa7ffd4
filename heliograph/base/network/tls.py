"""TLS toward others: whose certificates are accepted."""

from __future__ import annotations

import functools
import ssl


def client_context(authorities: str | None = None) -> ssl.SSLContext:
    """A context that verifies a server's certificate and name against the certificate authorities of a PEM file, or
    against the system's. Raises OSError if the file cannot be read.

    Since Python 3.13 the default insists on details of RFC 5280 such as the authority key identifier. Companies' own
    authorities often omit it, and curl, libpq and earlier Pythons accept them: upgrading the operating system must not
    cut off a supplier, a mail server or a receiver of webhooks.
    """
    context = ssl.create_default_context(cafile=authorities)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


@functools.cache
def shared_client_context() -> ssl.SSLContext:
    """One context of `client_context()` for all clients of this process, which must not change it: reading the system's
    hundred and more authorities takes 25 ms, in which an event loop does nothing else."""
    return client_context()
