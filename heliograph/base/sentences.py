"""Sentences for operators that can be told in another language, and results of checks, which are made of them.

A sentence is English and remembers what it was made of: its text, which is the key of its twin in a catalogue, and its
values. So whoever knows nothing of languages (a command, a log, a row of the database) has a text like any other. The
rules nobody may break: `said` is given a text that stands where it is called, since a test looks there for what has to
be translated; a successful check says what it found, and a failed one says the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, Self, TypeAlias, TypeVar

import msgspec

from heliograph.base.database.clock import iso

#: If work has been due for longer than this, whoever does it does not keep up, seconds.
LATE = 60.0
#: Characters that are kept of the words of others where they are kept short.
SHORT = 200

State = Literal["ok", "warning", "failed"]
#: What stands in a sentence: words of others, which are the same in every language, a number, a time, a sentence.
Value: TypeAlias = "str | int | float | datetime | Sentence"
T = TypeVar("T")


class Sentence(str):
    """A text in English, made by `said` or `quoted`."""

    #: What is looked up, with `%(name)s` for values; "" for the words of others.
    english: str
    values: Mapping[str, Value]

    def changed(self, change: Callable[[str], str]) -> Sentence:
        """With what others wrote in it changed, such as long numbers cut."""
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
        """With at most SHORT characters of each of the words of others in it."""
        return self.changed(lambda words: words[:SHORT])

    @classmethod
    def of(cls, english: str, values: Mapping[str, Value]) -> Self:
        """With its values filled in."""
        made = cls(english % {name: plain(value) for name, value in values.items()} if values else english)
        made.english, made.values = english, values
        return made


def said(english: str, /, **values: Value) -> Sentence:
    """A sentence: `said("%(count)s sessions bound", count=2)`."""
    return Sentence.of(english, values)


def quoted(words: str) -> Sentence:
    """The words of others, of an operator, or of an error: they are told as they are."""
    made = Sentence(words)
    made.english, made.values = "", {}
    return made


def kept(words: str) -> Sentence:
    """A sentence without values that was stored as its text; what is none is told as it is."""
    return Sentence.of(words, {})


def joined(parts: Iterable[str], by: str = ", ") -> Sentence:
    """Several after each other."""
    found = [part if isinstance(part, Sentence) else quoted(part) for part in parts if part]
    if not found:
        return quoted("")
    whole = found[0]
    for part in found[1:]:
        whole = Sentence.of(f"%(a)s{by}%(b)s", {"a": whole, "b": part})
    return whole


def sentence(words: str) -> Sentence:
    """Words that may be one; if not, they are others'."""
    return words if isinstance(words, Sentence) else quoted(words)


def english(words: str) -> str:
    """What a sentence says without its values, by which it is recognized; other words, as they are."""
    return (words.english if isinstance(words, Sentence) else "") or str(words)


def encoded(value: Any) -> str:
    """JSON of a struct that holds sentences, with their values."""
    return msgspec.json.encode(value, enc_hook=_packed).decode()


def decoded(stored: str, type: type[T]) -> T:
    """What `encoded` made."""
    return msgspec.json.decode(stored, type=type, dec_hook=lambda _, value: _unpacked(value))


def packed(sentence: str) -> str:
    """For storing it with its values, as JSON."""
    return msgspec.json.encode(_packed(sentence)).decode()


def unpacked(stored: str) -> Sentence:
    """A sentence that was stored."""
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
    """As English texts have it."""
    if isinstance(value, str):
        return str(value)
    return iso(value) if isinstance(value, datetime) else f"{value:,}"


class Check(msgspec.Struct, frozen=True):
    """One check's result. `remedy` is empty when it is ok."""

    check: Sentence
    state: State
    detail: Sentence
    remedy: Sentence = quoted("")
