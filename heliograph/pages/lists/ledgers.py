"""Reasons in ledgers, which are stored in English: those that the service gave itself, in the reader's language.

What a person wrote is shown as it is.
"""

from __future__ import annotations

import re

from heliograph.pages import words
from heliograph.pages.languages import ReaderLocale

#: A plan's name may contain anything.
_plan = re.compile(r"plan (.+?)(: remaining quota expired)?", re.DOTALL).fullmatch
_month = re.compile(r"sum of ([0-9]{4}-[0-9]{2})").fullmatch


def reason(locale: ReaderLocale, stored: str) -> str:
    """A reason as the reader sees it."""
    if (known := words.LEDGER_REASONS.get(stored)) is not None:
        return locale.text(known)
    if (found := _month(stored)) is not None:
        return locale.text("sum of %(month)s", month=found[1])
    if (found := _plan(stored)) is None:
        return stored
    if found[2]:
        return locale.text("plan %(plan)s: remaining quota expired", plan=found[1])
    return locale.text("plan %(plan)s", plan=found[1])
