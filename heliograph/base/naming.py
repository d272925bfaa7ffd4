"""Characters allowed in a name, of an organization, a person or a supplier, of a key, a campaign, a tag and so on; and
the encoding in which it is stored, so that two names that look the same are one.

Names are shown within other text, in pages, terminals and files. An invisible character that changes the order of its
neighbors (Unicode's Bidi_Control) makes one name look like another, or reverses the rest of a line. Joiners, which
Persian and Indic names need, do not.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType

from heliograph.base.errors import Invalid

#: Unicode's Bidi_Control, complete (PropList.txt).
_TURNS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
#: Control characters, line and paragraph separators, surrogates, and the byte order mark.
_HIDDEN = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff{_TURNS}]")
_TURNING = re.compile(f"[{_TURNS}\ufeff]")
#: Removes control characters and direction marks, which terminals interpret: a supplier's error, or a text that
#: somebody sent, could clear the screen or display different digits. Line breaks are kept.
HARMLESS = {
    **dict.fromkeys((*range(32), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd"),
    ord("\t"): " ",
    ord("\n"): "\n",
}
#: Invisible letters and symbols: Hangul fillers, the null notehead, the Braille blank.
BLANK = frozenset("\u115f\u1160\u3164\uffa0\U0001d159\u2800")
#: Categories visible by themselves: a mark (M) needs a letter; separators (Z) and others (C) are invisible.
_SEEN = frozenset("LNPS")
#: Unassigned characters that are never seen, whatever they become. Others may be letters or emojis that are newer than
#: Python's tables.
_NEVER_SEEN = re.compile(
    "[\u2065\ufdd0-\ufdef\ufff0-\ufff8\ufffe\uffff\U0001fffe\U0001ffff\U0002fffe\U0002ffff\U0003fffe-\U0010ffff]"
)
#: Marks that change nothing that is seen, or only how a neighbor is drawn.
_UNSEEN_MARK = re.compile("[\u034f\u17b4\u17b5\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")

#: An SQL condition: a row has this name ($1), regardless of case and of how accents are encoded, or this id.
IS_CALLED = "(lower(name) = lower(normalize($1)) OR id::text = lower($1))"
#: An SQL order of the rows for which IS_CALLED is true: an id means what has it, whatever is named so.
ID_FIRST = "id::text = lower($1) DESC"
#: An SQL condition: no row of {table} except the one with the id $1 has the name $2. A violated index would leave an
#: ERROR in PostgreSQL's log for each refusal; of two changes at the same moment, it refuses one all the same.
IS_FREE = "NOT EXISTS (SELECT FROM {table} other WHERE lower(other.name) = lower($2) AND other.id <> $1)"

#: Characters that NFC composes into one, at most, and those of the longest name of anything.
_MOST_DECOMPOSED, _LONGEST_NAME = 4, 200
#: A text that is composed without a look at it, and marks in a row, as categories, that no writing has (Unicode itself
#: allows for 30 of them: UAX 15, D4).
_SHORT, _HEAP = 64, re.compile(r"(?:M[a-z]){33}")


def is_plain(text: str) -> bool:
    """Whether a text contains only characters that a name may have."""
    return _HIDDEN.search(text) is None


def is_visible(text: str) -> bool:
    """Whether each character of a text is seen: for what identifies somebody, so that no two look the same."""
    if text.isascii():
        return text.isprintable() and " " not in text
    return _UNSEEN_MARK.search(text) is None and all(
        unicodedata.category(sign)[0] in "LMNPS" and sign not in BLANK for sign in text
    )


def is_readable(text: str) -> bool:
    """Whether a text shows anything at all."""
    return any(map(_is_seen, text))


def _is_seen(sign: str) -> bool:
    kind = unicodedata.category(sign)
    if kind == "Cn":
        return _NEVER_SEEN.match(sign) is None
    return kind[0] in _SEEN and sign not in BLANK


def bare(text: str) -> str:
    """A text without bidirectional controls: for files, since mail programs wrap names in them."""
    return text if text.isascii() else _TURNING.sub("", text)


def in_nfc(text: str) -> str:
    """A text in NFC; one with a heap of marks, which no writing has, is returned as it is: the time to compose them
    grows with the square of their number, and 1,600 took 30 ms."""
    if len(text) > _SHORT and _HEAP.search("".join(map(unicodedata.category, text))):
        return text
    return unicodedata.normalize("NFC", text)


def composed(text: str, *, longest: int) -> str:
    """A text in NFC, as which no two that look the same differ in how their accents are encoded.

    One that would be longer than `longest` characters all the same is returned as it is.
    """
    return in_nfc(text) if len(text) <= _MOST_DECOMPOSED * longest else text


def sought(text: str) -> str:
    """A text that is looked for in names: trimmed and in NFC, as they are. Keyboards and files of some systems give
    accents of their own, and `Joa\u0303o` would find no `João`."""
    return composed(text.strip(), longest=_LONGEST_NAME)


def checked(text: str, field: str, *, longest: int, said: Mapping[str, str] = MappingProxyType({})) -> str:
    """A name of 1 to `longest` characters, trimmed and in NFC, that shows something. Raises Invalid on `field`. `said`:
    other texts for it, by issue."""
    name = composed(text.strip(), longest=longest)
    issue, wrong = "", ""
    if not 1 <= len(name) <= longest:
        issue, wrong = "length", f"`{field}` must have 1 to {longest} characters"
    elif not is_plain(name):
        issue, wrong = "pattern", f"`{field}` must not contain control characters"
    elif not is_readable(name):  # like an empty one
        issue, wrong = "length", f"`{field}` must have 1 to {longest} characters, and not only invisible ones"
    if issue:
        raise Invalid((field, issue, said.get(issue, wrong)))
    return name
