"""The text of a campaign: plain text with placeholders for a recipient's data, each with an optional default:
`{{first_name|customer}}`.

The rule nobody may break: filling a placeholder is plain substitution, once. A contact's value is never interpreted, so
nobody's name can act as a placeholder or a command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from heliograph.base import naming
from heliograph.base.errors import Invalid
from heliograph.sms.accepting import encoding
from heliograph.sms.accepting.accept import MAX_SEGMENTS

#: The placeholders, and the recipient's values in the order in which `Filler` takes them.
PLACES = ("phone", "name", "first_name", "last_name")
#: Maximum length of a text in characters, with its placeholders as written and with them filled: filling a megabyte of
#: them took a worker 10 ms for each recipient.
MAX_LENGTH = 1600

# Each character is examined once: the spaces around a name are stripped afterwards.
_PLACE = re.compile(r"\{\{([^{}]*+)\}\}")

# Looked for once the placeholders are gone.
_SINGLE = re.compile(r"\{[ \w]{1,40}(?:\|[^{}]{0,200})?\}")

#: Values of PLACES, then the text.
Filler = Callable[[Sequence[str]], str]


def check(template: str, field: str, *, smart: bool, accents: bool = False) -> None:
    """Check a text. Raises Invalid on `field` for an unknown placeholder, or a text too long for every recipient."""
    if len(template) > MAX_LENGTH:
        raise Invalid((field, "length", f"`{field}` must have at most {MAX_LENGTH} characters"))
    check_places(template, field)
    rest = _PLACE.sub("", template)
    if naming.is_readable(rest) and measure(rest, smart=smart, accents=accents) is None:
        raise Invalid(
            (
                field,
                "too_many_segments",
                f"`{field}` needs more than {MAX_SEGMENTS} segments, even with empty placeholders",
            )
        )


def check_places(template: str, field: str) -> None:
    """Check placeholders. Raises Invalid on `field` for an unknown one, double braces outside of any, and a blank
    text."""
    unknown = [name for name in _named(template) if name not in PLACES]
    if unknown:
        known = ", ".join(f"{{{{{name}}}}}" for name in sorted(PLACES))
        shown = "".join(c if c.isprintable() else "\ufffd" for c in unknown[0][:64])
        raise Invalid(
            (field, "placeholder", f"`{field}` has the unknown placeholder {{{{{shown}}}}}; there are {known}")
        )
    # A placeholder that is not closed would be sent to everybody as typed. Each closed one is replaced by a space, so
    # that single braces on either side of it do not become a pair.
    left = _PLACE.sub(" ", template)
    if "{{" in left or "}}" in left:
        raise Invalid(
            (
                field,
                "braces",
                f"`{field}` has {{{{ or }}}} outside of a placeholder; write placeholders as {{{{name}}}}",
            )
        )
    if not naming.is_readable(template):
        raise Invalid((field, "length", f"`{field}` must not be blank"))


def places(template: str) -> frozenset[str]:
    """The placeholders of a text."""
    return frozenset(_named(template))


def fallbacks(template: str) -> list[tuple[str, str]]:
    """The distinct placeholders of a text, each with its default, in order."""
    return list(dict.fromkeys(_read(place) for place in _PLACE.findall(template)))


def lookalikes(template: str) -> list[str]:
    """The distinct words in single braces, as written, in order: probably meant as placeholders, but sent as they
    are."""
    return list(dict.fromkeys(_SINGLE.findall(_PLACE.sub(" ", template))))


def _named(template: str) -> list[str]:
    return [_read(place)[0] for place in _PLACE.findall(template)]


def _read(place: str) -> tuple[str, str]:
    """Parse the text between the braces: (name, default)."""
    name, _, default = place.partition("|")
    return name.strip(), default.strip()


def filler(template: str) -> Filler:
    """A function that fills the placeholders of this text; one without a value gets its default, or nothing."""
    # The pieces alternate: text, placeholder, text, placeholder, …, text.
    pieces = _PLACE.split(template)
    texts, read = pieces[::2], [_read(place) for place in pieces[1::2]]
    sources = [(PLACES.index(name), default) for name, default in read]

    def fill(values: Sequence[str]) -> str:
        parts = [texts[0]]
        for (number, default), text in zip(sources, texts[1:], strict=True):
            parts.append(values[number] or default)
            parts.append(text)
        return "".join(parts)

    return fill


def measure(text: str, *, smart: bool, accents: bool = False) -> tuple[encoding.Encoding, int] | None:
    """Encoding and segments, counted as in `sms.accept`; None: the text cannot be sent. A blank one, of
    placeholders for which a recipient has no values, or with nothing but invisible characters, says nothing and would
    cost as much as any other."""
    if len(text) > MAX_LENGTH or not naming.is_readable(text):
        return None
    kind, segments = encoding.count(text, smart=smart, accents=accents)
    return (kind, segments) if segments <= MAX_SEGMENTS else None
