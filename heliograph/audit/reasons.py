"""The reasons that people give for what they do: whether a text is one. The one place that says so.

The rule nobody may break: a reason can be read. Spaces, joiners, marks without a letter, and letters that are drawn as
nothing (Unicode's Default_Ignorable_Code_Point, and blanks that it counts among letters and signs) are none.
"""

from __future__ import annotations

import unicodedata

from heliograph.base.errors import Invalid

#: Characters of a reason.
LONGEST = 500
#: Letters and signs that show nothing: Hangul fillers, the null notehead, Braille's blank.
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\U0001d159\u2800")
#: Categories of what is seen by itself: a mark (M) needs a letter, and separators (Z) and others (C) are not seen.
_SEEN = frozenset("LNPS")


def is_readable(text: str) -> bool:
    """Whether a text shows anything at all."""
    return any(unicodedata.category(sign)[0] in _SEEN and sign not in _BLANK for sign in text)


def given(text: str) -> str | None:
    """A reason without the spaces around it; None: nothing that can be read was given, or too much."""
    reason = text.strip()
    return reason if len(reason) <= LONGEST and "\0" not in reason and is_readable(reason) else None


def check_optional(text: str) -> None:
    """Raises Invalid on `reason` for one that was given and cannot be read; nothing at all is no reason, and well."""
    if text.strip() and not is_readable(text):
        raise Invalid(("reason", "blank", "This reason shows nothing that can be read. Say why, in words."))


def for_organization(text: str) -> str:
    """A reason that an organization reads, without the spaces around it. Raises Invalid on `reason`."""
    if (reason := given(text)) is None:
        raise Invalid(("reason", "length", "Say why, in at most 500 characters: the organization reads it."))
    return reason
