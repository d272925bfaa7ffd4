"""What every simulator demands of its options before it starts: a fault that is asked for is the only one it has."""

from __future__ import annotations

import math
from collections.abc import Collection

import msgspec


def demand_possible(options: msgspec.Struct, *, shares: Collection[str] = (), below_zero: Collection[str] = ()) -> None:
    """Check the numbers among these options: a port is one, `shares` are from 0 to 1, and nothing is below 0 except
    `below_zero`; and that there is an address to listen on. Raises ValueError."""
    for name in options.__struct_fields__:
        value = getattr(options, name)
        if name == "host" and not value.strip():  # the system would take it for all addresses
            raise ValueError("host is empty")
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        most = 65_535 if name == "port" else 1 if name in shares else None
        if most is not None and not 0 <= value <= most:
            raise ValueError(f"{name} is not between 0 and {most}")
        if not (-math.inf if name in below_zero else 0) <= value < math.inf:
            raise ValueError(f"{name} is not a number of 0 or more")
