"""Expiry of the certificates, kept in files, that we present or trust. A file is reread only after it has changed."""

from __future__ import annotations

import os
from datetime import datetime
from functools import lru_cache

from cryptography import x509


def ends_at(path: str, *, trusted: bool = False) -> datetime:
    """When the first certificate in a PEM file expires, without which it cannot be presented; of `trusted` ones the
    last, since a file of several is good as long as one of them is, as while an authority is being replaced. Raises
    OSError; ValueError if the file has none."""
    ends = _ends(path, os.stat(path).st_mtime_ns)
    return max(ends) if trusted else min(ends)


@lru_cache(maxsize=256)
def _ends(path: str, _changed: int) -> tuple[datetime, ...]:
    with open(path, "rb") as file:
        found = x509.load_pem_x509_certificates(file.read())
    return tuple(one.not_valid_after_utc for one in found)
