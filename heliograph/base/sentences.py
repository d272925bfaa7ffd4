"""Translatable sentences for operators, and results of checks, which consist of them.

A sentence is English and remembers how it was built: its text, which is the key in a translation catalog, and its
values. So code that knows nothing about languages (a command, a log, a row of the database) has an ordinary text. The
rules nobody may break: `said` gets a literal text, since a test looks there for texts to translate; a successful check
says what it found, and a failed one names the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, Self, TypeAlias, TypeVar

import msgspec

from heliograph.base.database.clock import iso

#: Work that has been due for longer than this means that its process does not keep up, seconds.
LATE = 60.0
#: Maximum characters of quoted text in shortened sentences.
SHORT = 200
#: An option of a command in a text, such as `--org`: where it is shown, no line ends within it.
OPTION = re.compile(r"(?<![\w-])(--?[a-z][\w-]*)")

State = Literal["ok", "warning", "failed"]
#: A value in a sentence: quoted text, which is the same in every language, a number, a time, a sentence.
Value: TypeAlias = "str | int | float | datetime | Sentence"
T = TypeVar("T")


class Sentence(str):
    """An English text, created by `said` or `quoted`."""

    #: The text to look up, with `%(name)s` for values; "" for quoted text.
    english: str
    values: Mapping[str, Value]

    def changed(self, change: Callable[[str], str]) -> Sentence:
        """With its quoted parts changed, for example with long numbers cut."""
        if not self.english:
            return quoted(change(self))
        values = {
            name: value.changed(change)
            if isinstance(value, Sentence)
            else change(value)
            if isinstance(value, str)
            else value
            for name, value in self.values.items()
        }
        return Sentence.of(self.english, values)

    def short(self) -> Sentence:
        """With each quoted part cut to SHORT characters."""
        return self.changed(lambda words: words[:SHORT])

    @classmethod
    def of(cls, english: str, values: Mapping[str, Value]) -> Self:
        """A sentence with its values filled in."""
        made = cls(english % {name: plain(value) for name, value in values.items()} if values else english)
        made.english, made.values = english, values
        return made


def said(english: str, /, **values: Value) -> Sentence:
    """A sentence: `said("%(count)s sessions bound", count=2)`."""
    return Sentence.of(english, values)


def quoted(words: str) -> Sentence:
    """Text of others, of an operator or of an error, which is never translated."""
    made = Sentence(words)
    made.english, made.values = "", {}
    return made


def kept(words: str) -> Sentence:
    """A sentence without values that was stored as its text; other text is shown unchanged."""
    return Sentence.of(words, {})


def joined(parts: Iterable[str], by: str = ", ") -> Sentence:
    """Several sentences, joined."""
    found = [part if isinstance(part, Sentence) else quoted(part) for part in parts if part]
    if not found:
        return quoted("")
    whole = found[0]
    for part in found[1:]:
        whole = Sentence.of(f"%(a)s{by}%(b)s", {"a": whole, "b": part})
    return whole


def with_noun(count: int, one: str, many: str = "") -> str:
    """A number with its noun, in English: "1 message", "1,200 messages". `many`: the plural, if it is not `one` with an
    s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def sentence(words: str) -> Sentence:
    """Text that may be a sentence; otherwise it counts as quoted."""
    return words if isinstance(words, Sentence) else quoted(words)


def english(words: str) -> str:
    """A sentence's text without its values, by which it is recognized; other text unchanged."""
    return (words.english if isinstance(words, Sentence) else "") or str(words)


def encoded(value: Any) -> str:
    """JSON of a struct that contains sentences, with their values."""
    return msgspec.json.encode(value, enc_hook=_packed).decode()


def decoded(stored: str, type: type[T]) -> T:
    """The inverse of `encoded`."""
    return msgspec.json.decode(stored, type=type, dec_hook=lambda _, value: _unpacked(value))


def packed(sentence: str) -> str:
    """A sentence with its values as JSON, for storing."""
    return msgspec.json.encode(_packed(sentence)).decode()


def unpacked(stored: str) -> Sentence:
    """The inverse of `packed`; an empty quotation for ""."""
    return _unpacked(msgspec.json.decode(stored)) if stored else quoted("")


def _packed(value: Value) -> Any:
    if isinstance(value, Sentence) and value.english:
        return [value.english, {name: _packed(one) for name, one in value.values.items()}]
    if isinstance(value, datetime):
        return {"at": iso(value)}
    return str(value) if isinstance(value, str) else value


def _unpacked(stored: Any) -> Sentence:
    if isinstance(stored, str):
        return quoted(stored)
    return Sentence.of(stored[0], {name: _value(one) for name, one in stored[1].items()})


def _value(stored: Any) -> Value:
    if isinstance(stored, dict):
        return datetime.fromisoformat(stored["at"])
    return _unpacked(stored) if isinstance(stored, list | str) else stored


def plain(value: Value) -> str:
    """A value as shown in English text."""
    if isinstance(value, str):
        return str(value)
    return iso(value) if isinstance(value, datetime) else f"{value:,}"


class Check(msgspec.Struct, frozen=True):
    """One check's result. `remedy` is empty if it is ok."""

    check: Sentence
    state: State
    detail: Sentence
    remedy: Sentence = quoted("")
