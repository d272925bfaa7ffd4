"""Expiry of the certificates, kept in files, that we present or trust. A file is reread only after it has changed."""

from __future__ import annotations

import os
from datetime import datetime
from functools import lru_cache

from cryptography import x509


def ends_at(path: str) -> datetime:
    """When the first certificate in a PEM file expires. Raises OSError; ValueError if the file has none."""
    return _ends_at(path, os.stat(path).st_mtime_ns)


@lru_cache(maxsize=256)
def _ends_at(path: str, _changed: int) -> datetime:
    with open(path, "rb") as file:
        found = x509.load_pem_x509_certificates(file.read())
    return min(one.not_valid_after_utc for one in found)
