"""Logarithmic histograms of durations: 32 buckets, each twice as wide as the one before, from a millisecond to 24 days.

The rule nobody may break: a bucket's bounds never change, because stored counts refer to them.
"""

from __future__ import annotations

from collections.abc import Sequence

LENGTH = 32


def bucket(seconds: float) -> int:
    """The bucket of a duration: number n contains durations from 2^n up to 2^(n+1) milliseconds; the first also shorter
    ones, the last also longer ones."""
    return bucket_of(int(seconds * 1000))


def bucket_of(milliseconds: int) -> int:
    """The same for whole milliseconds."""
    return min(max(milliseconds.bit_length() - 1, 0), LENGTH - 1)


def as_text(counts: Sequence[int] | None) -> str:
    """The counts as the text of an array, empty for None: as nested arrays, all would have to be of equal length."""
    return "{}" if counts is None else f"{{{','.join(map(str, counts))}}}"


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Seconds within which `share` (0 to 1) of the durations lie, assuming an even spread within each bucket. None:
    there are no durations."""
    total = sum(counts)
    if total == 0:
        return None
    wanted, below = share * total, 0
    for number, count in enumerate(counts):
        if count and below + count >= wanted:
            start = 0.0 if number == 0 else 2.0**number
            return (start + (2.0 ** (number + 1) - start) * (wanted - below) / count) / 1000
        below += count
    raise AssertionError("a share is at most 1")
