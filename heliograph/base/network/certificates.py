"""Certificates that end: of files that we show or trust. What a file says is read again only when the file changed."""

from __future__ import annotations

import os
from datetime import datetime
from functools import lru_cache

from cryptography import x509


def ends_at(path: str) -> datetime:
    """When the first of the certificates in a PEM file ends. Raises OSError, ValueError if it holds none."""
    return _ends_at(path, os.stat(path).st_mtime_ns)


@lru_cache(maxsize=256)
def _ends_at(path: str, _changed: int) -> datetime:
    with open(path, "rb") as file:
        found = x509.load_pem_x509_certificates(file.read())
    return min(one.not_valid_after_utc for one in found)
