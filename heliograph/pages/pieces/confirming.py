"""Confirmation of destructive actions that affect everybody: the name has to be typed (`kit.confirm`)."""

from __future__ import annotations

from heliograph.base import naming
from heliograph.base.errors import Invalid
from heliograph.pages.requests import Request

FIELD = "typed"


def check(request: Request, word: str) -> None:
    """Check that the form contains `word`. Raises Invalid."""
    given = naming.sought(request.form.get(FIELD, ""))
    if " ".join(given.split()).casefold() != " ".join(word.split()).casefold():
        raise Invalid((FIELD, "differs", "This is not the text that has to be typed."))
