"""Confirmation of destructive actions that affect everybody: the name has to be typed (`kit.confirm`)."""

from __future__ import annotations

from heliograph.base import naming
from heliograph.base.errors import Invalid
from heliograph.pages.requests import Request

FIELD = "typed"


def check(request: Request, word: str) -> None:
    """Check that the form contains `word`. Raises Invalid."""
    # E-mail addresses are stored as they were typed, not composed.
    given, wanted = (naming.sought(text) for text in (request.form.get(FIELD, ""), word))
    if " ".join(given.split()).casefold() != " ".join(wanted.split()).casefold():
        raise Invalid((FIELD, "differs", "This is not the text that has to be typed."))
