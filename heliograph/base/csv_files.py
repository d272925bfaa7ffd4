"""CSV files for people: no spreadsheet that opens them evaluates a cell."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import TextIO

# Spreadsheets in Chinese, Japanese or Korean also accept the wide forms of these signs (U+FF0B, FF0D, FF1D, FF20).
_WIDE = "\uff0b\uff0d\uff1d\uff20"
_is_formula = re.compile(rf"[=@\t\r\n{_WIDE}]|[+-](?![0-9 ().-]*$)").match
_is_guarded = re.compile(rf"'[=@\t\r\n{_WIDE}+-]").match


def guarded(cell: str) -> str:
    """A cell that no spreadsheet evaluates: text that begins like a formula is prefixed with an apostrophe. Numbers are
    unchanged."""
    return f"'{cell}" if _is_formula(cell) else cell


def unguarded(cell: str) -> str:
    """The inverse of `guarded`; spreadsheets mark texts that look like numbers in the same way."""
    return cell[1:] if _is_guarded(cell) else cell


class Writer:
    """A CSV file whose cells are guarded."""

    def __init__(self, file: TextIO, columns: Sequence[str], *, delimiter: str = ",") -> None:
        self._write = csv.writer(file, delimiter=delimiter, lineterminator="\n").writerow
        self.row(columns)

    def row(self, cells: Sequence[str]) -> None:
        """Write one row."""
        self._write([guarded(cell) for cell in cells])
