"""What a look at one part of the installation comes to: the results that `heliograph doctor` shows.

The rule nobody may break: a check that finds nothing wrong says what it saw, and one that does says the remedy.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: Work that has been due for longer says that whoever does it does not keep up, seconds.
LATE = 60.0

State = Literal["ok", "warning", "failed"]


class Check(msgspec.Struct, frozen=True):
    """One check's result. `remedy` is empty when it is ok."""

    check: str
    state: State
    detail: str
    remedy: str = ""
