"""Operations and error codes that a request can have: a filter for anything else is a mistake, not an empty list."""

from __future__ import annotations

from difflib import get_close_matches

import msgspec

from heliograph.requests.reading import Filters

#: Similarity from which a known word is suggested, 0 to 1.
CLOSE = 0.6


class Unknown(msgspec.Struct, frozen=True):
    """A filter whose value no request has."""

    #: A field of Filters.
    field: str
    given: str
    #: The known word that it resembles most; None: it resembles none.
    closest: str | None


class Vocabulary(msgspec.Struct, frozen=True):
    """The words that requests of this installation are logged with."""

    #: Ids of operations, and routes of the dashboard.
    operations: frozenset[str] = frozenset()
    #: Of refusals by operations of the API and by pages.
    error_codes: frozenset[str] = frozenset()

    def unknown(self, filters: Filters) -> list[Unknown]:
        """The filters of `filters` that can match nothing."""
        asked = (
            ("error_code", filters.error_code, self.error_codes),
            ("operation", filters.operation, self.operations),
        )
        return [
            Unknown(field, given, _closest(given, known))
            for field, given, known in asked
            if given is not None and given not in known
        ]


def _closest(given: str, known: frozenset[str]) -> str | None:
    folded = {_folded(word): word for word in sorted(known)}
    close = get_close_matches(_folded(given), folded, n=1, cutoff=CLOSE)
    return folded[close[0]] if close else None


def _folded(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
