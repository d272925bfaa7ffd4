"""Where the pages of a list end, in the address: "Newer" leads back through them, one by one."""

from __future__ import annotations

from uuid import UUID

#: Pages that are remembered.
MOST_BACK = 30


def read(text: str) -> list[UUID]:
    """The ids at which the pages that lead here ended, in order; nothing if it is not ours."""
    try:
        return [UUID(hex=one) for one in text.split(".")][-MOST_BACK:] if text else []
    except ValueError:
        return []


def further(trail: list[UUID], last: UUID) -> list[UUID]:
    """With the end of this page."""
    return [*trail, last][-MOST_BACK:]


def written(trail: list[UUID]) -> str:
    """As `read` reads it."""
    return ".".join(one.hex for one in trail)
