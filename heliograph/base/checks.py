"""Results of checks of the installation, which `heliograph doctor` shows.

The rule nobody may break: a successful check says what it found, and a failed one says the remedy.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: If work has been due for longer than this, whoever does it does not keep up, seconds.
LATE = 60.0

State = Literal["ok", "warning", "failed"]


class Check(msgspec.Struct, frozen=True):
    """One check's result. `remedy` is empty when it is ok."""

    check: str
    state: State
    detail: str
    remedy: str = ""
