"""Text from outside, made storable in the database."""

from __future__ import annotations


def storable(text: str, most: int = 255) -> str:
    """A supplier's text, made storable: PostgreSQL accepts neither NUL nor a lone surrogate, and nobody needs a long
    text."""
    if len(text) <= most and text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:most]
