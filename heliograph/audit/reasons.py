"""Validation of the reasons that people give for their actions. The only place that defines it.

The rule nobody may break: a reason is readable. Spaces, joiners, marks without a letter, and invisible letters
(Unicode's Default_Ignorable_Code_Point, and blanks classified as letters or symbols) alone are not a reason.
"""

from __future__ import annotations

from heliograph.base import naming
from heliograph.base.errors import Invalid

#: Maximum characters of a reason.
LONGEST = 500


def normalized(text: str) -> str | None:
    """A reason without surrounding spaces; None: it is not readable, or too long."""
    reason = text.strip()
    return reason if len(reason) <= LONGEST and "\0" not in reason and naming.is_readable(reason) else None


def check_optional(text: str) -> None:
    """Check a reason that may be omitted. Raises Invalid on `reason` if one was given that is not readable."""
    if text.strip() and not naming.is_readable(text):
        raise Invalid(("reason", "blank", "This reason contains nothing readable. Give one in words."))


def for_organization(text: str) -> str:
    """A reason that the organization will read, without surrounding spaces. Raises Invalid on `reason`."""
    if (reason := normalized(text)) is None:
        raise Invalid(("reason", "length", "Give a reason of at most 500 characters: the organization can read it."))
    return reason
