"""JSON from Meta, in callbacks and answers, whose texts can be stored.

PostgreSQL accepts no NUL in text, and msgspec no lone surrogate. Users' texts and names can contain both, and one such
string in an answer must not make the message count as unanswered.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

#: What reading may raise: broken JSON, an unexpected shape, a number that is too long, nesting that is too deep.
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)

_BACKSLASH = ord("\\")

_Value = TypeVar("_Value")


def has_nul(raw: bytes) -> bool:
    """Whether a text in this JSON may contain a NUL."""
    # Asked for by its number: for bytes in bytes, Python first raises and drops a TypeError.
    return 0 in raw or (_BACKSLASH in raw and b"\\u0000" in raw)


def decoded(raw: bytes, decode: Callable[[bytes], _Value]) -> _Value:
    """`raw`, as `decode` reads it, without NULs and lone surrogates. Raises one of UNREADABLE."""
    if not has_nul(raw):
        try:
            return decode(raw)
        except UNREADABLE:
            pass
    return decode(_repaired(raw))


def _repaired(raw: bytes) -> bytes:
    """The same JSON without NULs and lone surrogates."""
    return msgspec.json.encode(_cleaned(json.loads(raw.decode("utf-8", "replace"), strict=False)))


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return value.replace("\0", "").encode("utf-8", "replace").decode()
        case dict():
            return {_cleaned(name): _cleaned(inner) for name, inner in value.items()}
        case list():
            return [_cleaned(inner) for inner in value]
    return value
