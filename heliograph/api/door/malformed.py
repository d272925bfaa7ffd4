"""What is wrong with a body that is not JSON, and where: the position and the kind of mistake, none of its content.
Also reads those whose values are impossible, to say which."""

from __future__ import annotations

import codecs
import json
import re
import sys
from typing import Any, NoReturn

from heliograph.api.shapes.refusals import InvalidJson

#: msgspec's message, with the offset in bytes.
_MALFORMED = re.compile(r"JSON is malformed: (?P<what>.*) \(byte (?P<at>[0-9]+)\)")
#: Clearer wordings of some of its messages.
_WORDS = {"object keys must be strings": "a name must be in double quotes"}


class DuplicateName(ValueError):
    """An object has a name twice."""


def distinct_names(body: Any) -> int:
    """The number of names in all objects of a body; in one object, each counts once."""
    count, values = 0, [body]
    for value in values:  # which grows meanwhile
        kind = type(value)
        if kind is dict:
            count += len(value)
            values += value.values()
        elif kind is list:
            values += value
    return count


def parsed(raw: bytes) -> Any:
    """A body of which a number may be out of range, which is then infinite, or a text half of a surrogate pair. Raises
    DuplicateName, and ValueError or RecursionError if it is not JSON."""
    # Decoded here: of bytes, Python would take other encodings, too, and halves of surrogate pairs.
    return json.loads(raw.decode(), object_pairs_hook=_all_different, parse_int=_whole, parse_constant=_refused)


def _all_different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    different = dict(pairs)
    if len(different) != len(pairs):
        raise DuplicateName
    return different


def _whole(text: str) -> float:
    # Python refuses integers of more than 4,300 digits.
    return int(text) if len(text) <= sys.float_info.max_10_exp else float(text)


def _refused(word: str) -> NoReturn:
    raise ValueError(f"JSON has no {word}")


def refusal(raw: bytes, error: Exception) -> InvalidJson:
    """The refusal of these bytes, which could not be decoded."""
    wrong = _wrong(raw, error)
    return InvalidJson(f"The body is not valid JSON (RFC 8259): {wrong}.") if wrong else InvalidJson()


def _wrong(raw: bytes, error: Exception) -> str | None:
    if not raw.strip():
        return "it is empty"
    if raw.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "it begins with a byte order mark; it must be UTF-8 without one"
    if isinstance(error, DuplicateName):
        return "a name is given twice in an object"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeError):
        return "it is not UTF-8"
    if str(error) == "Input data was truncated":
        return "it ends before it is complete"
    if (found := _MALFORMED.fullmatch(str(error))) is None:
        return None
    before = raw[: int(found["at"])]
    column = len(before.rpartition(b"\n")[2].decode(errors="replace")) + 1
    line = before.count(b"\n") + 1
    return f"{_WORDS.get(found['what'], found['what'])} at line {line}, column {column}"
