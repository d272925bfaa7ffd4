"""CSV files for people: no spreadsheet that opens them evaluates a cell. And lists in one text, a cell or a field of a
form: an item that contains what separates items, such as the tag `lisbon, pt`, is quoted like a cell, and remains one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from typing import TextIO

# Spreadsheets in Chinese, Japanese or Korean also accept the wide forms of these signs (U+FF0B, FF0D, FF1D, FF20).
_WIDE = "\uff0b\uff0d\uff1d\uff20"
_is_formula = re.compile(rf"[=@\t\r\n{_WIDE}]|[+-](?![0-9 ().-]*$)").match
_is_guarded = re.compile(rf"'[=@\t\r\n{_WIDE}+-]").match
#: What separates items in files of any origin; in a form only a comma does.
_IN_CELLS = "[;,|]|:::"
# A separator follows a closing quotation mark: other marks are characters of the item.
_ITEM = r'\s*"((?:[^"]|"")+)"\s*(?:{0}|\Z)|(.*?)(?:{0}|\Z)'
_in_form, _in_cell = (re.compile(_ITEM.format(separator), re.DOTALL).finditer for separator in (",", _IN_CELLS))
_is_ambiguous = re.compile(f"[\"']|.*?(?:{_IN_CELLS})").match


def guarded(cell: str) -> str:
    """A cell that no spreadsheet evaluates: text that begins like a formula is prefixed with an apostrophe. Numbers are
    unchanged."""
    return f"'{cell}" if _is_formula(cell) else cell


def unguarded(cell: str) -> str:
    """The inverse of `guarded`; spreadsheets mark texts that look like numbers in the same way."""
    return cell[1:] if _is_guarded(cell) else cell


def quoted(item: str) -> str:
    """An item as written in a list."""
    return '"' + item.replace('"', '""') + '"' if _is_ambiguous(item) else item


def joined(items: Iterable[str], separator: str = ", ") -> str:
    """Items as a list, from which `split` returns them."""
    return separator.join(map(quoted, items))


def split(text: str, *, is_cell: bool = False) -> list[str]:
    """The items of a list, as typed; blank ones are omitted. `is_cell`: of a file, where spreadsheets may have put an
    apostrophe before an item."""
    found = []
    for one in (_in_cell if is_cell else _in_form)(text):
        if one[1] is not None:
            found.append(one[1].replace('""', '"'))
        else:
            found.append(unguarded(one[2].strip()) if is_cell else one[2])
    return [item for item in found if item.strip()]


class Writer:
    """A CSV file whose cells are guarded."""

    def __init__(self, file: TextIO, columns: Sequence[str], *, delimiter: str = ",") -> None:
        self._write = csv.writer(file, delimiter=delimiter, lineterminator="\n").writerow
        self.row(columns)

    def row(self, cells: Sequence[str]) -> None:
        """Write one row."""
        self._write([guarded(cell) for cell in cells])
