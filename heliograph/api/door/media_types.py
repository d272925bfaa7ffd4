"""Whether a request's body is JSON, by its content type."""

from __future__ import annotations

import re
from functools import lru_cache

# RFC 9110, 5.6.6. Possessive, so that each byte is scanned once.
_parameter = re.compile(
    rb"""[ \t]*+;[ \t]*+(?:([!#$%&'*+.^_`|~0-9A-Za-z-]++)=([!#$%&'*+.^_`|~0-9A-Za-z-]++|"(?:[^"\\]|\\.)*+"))?"""
).match
_JSON = b"application/json"


@lru_cache(16)
def is_json(kind: bytes) -> bool:
    """Whether a media type is JSON. Its parameters mean nothing, except another charset."""
    kind = kind.rstrip(b" \t")
    at = len(_JSON)
    if kind[:at].lower() != _JSON:
        return False
    while at < len(kind):
        found = _parameter(kind, at)
        if found is None:
            return False
        name, value = found.groups(b"")
        if name.lower() == b"charset" and value.strip(b'"').lower() not in (b"utf-8", b"utf8"):
            return False
        at = found.end()
    return True
