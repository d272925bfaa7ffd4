"""Words that people send to stop messages, to get them again, or to ask who is there. Pure.

The rule nobody may break: only a message that is such a word as a whole counts. "Stop by tomorrow" stops nothing, and
nobody is unsubscribed by what they never said.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection
from typing import Literal

Keyword = Literal["stop", "start", "help"]

#: The words of the North American carriers' rules, REVOKE and OPTOUT among them since 2025.
STOP = frozenset({"stop", "stopall", "unsubscribe", "cancel", "end", "quit", "revoke", "optout"})
START = frozenset({"start", "unstop", "yes"})
#: Says START only to somebody who has opted out: otherwise it is an answer to something else.
ONLY_OPTED_OUT = frozenset({"yes"})
HELP = frozenset({"help", "info"})
#: A longer text is no keyword, and not worth folding.
LONGEST = 100


def find(text: str, *, additions: Collection[str] = ()) -> tuple[Keyword, str] | None:
    """What the text asks for, and the word it was as `fold` writes it; None: nothing.

    `additions`: an organization's own words for STOP, folded. The standard words mean what they mean everywhere.
    """
    if len(text) > LONGEST:
        return None
    word = fold(text)
    if not word:  # nothing but signs
        return None
    # "OPT OUT" and "STOP ALL" are written with a space as often as without.
    for one in (word, word.replace(" ", "", 1)) if word.count(" ") == 1 else (word,):
        if one in STOP:
            return "stop", one
        if one in START:
            return "start", one
        if one in HELP:
            return "help", one
        if one in additions:
            return "stop", one
    return None


def fold(text: str) -> str:
    """A text as it is compared: compatible forms, letter case, spaces, and what surrounds the words do not count.

    What surrounds them is all that is neither letter, digit nor their marks: punctuation, quotes, emoji.
    """
    shown = []
    for one in unicodedata.normalize("NFKC", text):
        kind = unicodedata.category(one)
        if kind != "Cf":  # joiners and marks of direction show nothing
            shown.append(" " if kind == "Pd" else one)
    words = " ".join("".join(shown).split())
    start, end = 0, len(words)
    while start < end and not _is_word(words[start]):
        start += 1
    while end > start and not _is_word(words[end - 1]):
        end -= 1
    return unicodedata.normalize("NFKC", words[start:end].casefold())


def _is_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LNM"
