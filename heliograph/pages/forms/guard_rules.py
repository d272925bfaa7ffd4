"""The guard's rules as fields of a form, on the organization's own page and in the console."""

from __future__ import annotations

from heliograph.classes import kinds
from heliograph.guard.rules import Rules
from heliograph.pages import words
from heliograph.pages.requests import Request

FIELDS = ("policy", "safe", *(f"limit_{name}" for name in kinds.NAMES))


def shown(known: Rules) -> dict[str, str]:
    """The current values of FIELDS."""
    return {
        "policy": "" if known.by_default else known.policy,
        "safe": "\n".join(known.safe),
        **{f"limit_{name}": str(known.limits.get(name, "")) for name in kinds.NAMES},
    }


def labels(request: Request) -> dict[str, str]:
    """What the limits are called, which can have the same error."""
    return {f"limit_{name}": request.text(words.GUARD_CLASSES[name]) for name in kinds.NAMES}


def ranges(safe: str) -> list[str]:
    """The ranges that somebody typed, one to a line or separated by commas."""
    return [one.strip() for one in safe.replace(",", "\n").splitlines() if one.strip()]
