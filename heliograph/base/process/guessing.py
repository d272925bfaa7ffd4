"""Whether a secret can be guessed, as far as that shows: repetitions, sequences, few characters."""

from __future__ import annotations

import zlib
from itertools import pairwise

#: Different characters that a secret must have, and bytes that must remain of it once repetitions are removed.
FEWEST_CHARACTERS = 8
LEAST_CONTENT = 24


def weakness(secret: str) -> str:
    """Why a secret can be guessed, for a sentence; "" if nothing speaks against it.

    32 random hexadecimal digits have fewer than eight different ones once in 50,000 times, and compress or count by
    chance far less often.
    """
    if len(set(secret)) < FEWEST_CHARACTERS:
        return "uses only a few different characters"
    # Raw deflate writes a repeated piece once, and adds two bytes to what does not repeat.
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    if len(packed.compress(secret.encode()) + packed.flush()) < LEAST_CONTENT:
        return "repeats itself"
    codes = [ord(one) for one in secret]
    steps = [after - before for before, after in pairwise(codes)]
    if sum(one == other for one, other in pairwise(steps)) > len(steps) / 2:
        return "is a sequence, such as the alphabet"
    return ""
