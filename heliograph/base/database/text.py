"""Words of others, as the database can keep them."""

from __future__ import annotations


def storable(text: str, most: int = 255) -> str:
    """A supplier's word as it can be stored: PostgreSQL takes no NUL and no half of a surrogate pair, and nobody needs
    a long one."""
    if text.isascii() and "\0" not in text:
        return text[:most]
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:most]
