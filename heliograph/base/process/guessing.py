"""Detects secrets that can be guessed, as far as that is visible: repetitions, sequences, few characters."""

from __future__ import annotations

import zlib
from itertools import pairwise

#: Minimum number of different characters in a secret, and of bytes that remain once repetitions are removed.
FEWEST_CHARACTERS = 8
LEAST_CONTENT = 24


def weakness(secret: str) -> str:
    """Why a secret can be guessed, as a predicate; "" if no weakness is found.

    32 random hexadecimal digits contain fewer than eight different ones once in 50,000 times, and are compressible or
    sequential by chance far less often.
    """
    if len(set(secret)) < FEWEST_CHARACTERS:
        return "uses only a few different characters"
    # Raw deflate writes a repeated piece once, and adds two bytes to text without repetitions.
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    if len(packed.compress(secret.encode()) + packed.flush()) < LEAST_CONTENT:
        return "repeats itself"
    codes = [ord(one) for one in secret]
    steps = [after - before for before, after in pairwise(codes)]
    if sum(one == other for one, other in pairwise(steps)) > len(steps) / 2:
        return "is a sequence, such as the alphabet"
    return ""
