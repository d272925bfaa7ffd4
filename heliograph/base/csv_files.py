"""CSV files for people, in which no cell is evaluated by a spreadsheet; lists within a single text (a cell, or a field
of a form), where an item that contains a separator, such as the tag `lisbon, pt`, is quoted like a cell; and reading
files of any origin: their encoding, and lines of bounded length.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Sequence
from typing import TextIO

# Spreadsheets in Chinese, Japanese or Korean also accept the wide forms of these signs (U+FF0B, FF0D, FF1D, FF20).
_WIDE = "\uff0b\uff0d\uff1d\uff20"
_is_formula = re.compile(rf"[=@\t\r\n{_WIDE}]|[+-](?![0-9 ().-]*$)").match
_is_guarded = re.compile(rf"'+[=@\t\r\n{_WIDE}+-]").match
# A spreadsheet whose language separates lists with the other sign splits a cell there, quoted or not: `Ana;=1+1` in a
# file with commas is two cells in Portuguese. Words that only begin with a sign (`- milk`, `@ana`) compute nothing.
_INSIDE = r"[=\uff1d]|[+@\uff0b\uff0d\uff20-][^;,\t\r\n]*[(|!]"
_formula_inside = re.compile(rf"[;,\t\r\n](?='*(?:{_INSIDE}))")
_guarded_inside = re.compile(rf"([;,\t\r\n])'(?='*(?:{_INSIDE}))")
#: How some programs keep spreadsheets from reading a number: `="+258841234567"`.
_as_formula = re.compile(r'="([^"]*)"').fullmatch
#: Maximum characters of a line; the rest of a longer one is skipped. A row of more, on several lines, has no end.
LONGEST = 1 << 20
#: What separates items in files of any origin; in a form only a comma does.
_IN_CELLS = "[;,|]|:::"
# A separator follows a closing quotation mark: other marks are characters of the item. Possessive: going back over an
# item whose mark is never closed would find nothing, and takes 130 bytes of memory for each character.
_ITEM = r'\s*"((?:[^"]|"")++)"\s*(?:{0}|\Z)|(.*?)(?:{0}|\Z)'
_in_form, _in_cell = (re.compile(_ITEM.format(separator), re.DOTALL).finditer for separator in (",", _IN_CELLS))
#: Before the labels that Google makes itself: `* myContacts`.
_MARK = "* "
_is_ambiguous = re.compile(rf"[\"']|=\"|\* |.*?(?:{_IN_CELLS})").match
#: Byte order marks, and the encodings that they indicate.
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
#: Control characters except white space, the end of a file from DOS, and the escapes of encodings that switch; and
#: characters for private use.
_strange = re.compile(r"[\x00-\x08\x0e-\x19\x1c-\x1f\x7f\ue000-\uf8ff]").findall
#: One in at most this many characters is one of those in a binary file: in pictures and compressed ones, one in ten are
#: control characters, or for private use if the file is read as UTF-16. In a table, a stray one costs the row that it
#: is in.
_BINARY = 20


def marked_encoding(beginning: bytes) -> str | None:
    """The encoding that a file's byte order mark indicates; None: it has none. Spreadsheets call UTF-16 with its mark
    "Unicode text"."""
    return next((encoding for mark, encoding in _BYTE_ORDER_MARKS if beginning.startswith(mark)), None)


def is_binary(text: str) -> bool:
    """Whether bytes that were decoded as this text are those of a picture or another binary file."""
    return len(_strange(text)) * _BINARY > len(text)


def guarded(cell: str) -> str:
    """A cell that no spreadsheet evaluates: text that begins like a formula is prefixed with an apostrophe, as is one
    after a separator or a line break within it, and text that `unguarded` would take for prefixed. Numbers are
    unchanged."""
    cell = _formula_inside.sub(r"\g<0>'", cell)
    return f"'{cell}" if _is_formula(cell) or _is_guarded(cell) else cell


def unguarded(cell: str) -> str:
    """The inverse of `guarded`; spreadsheets mark texts that look like numbers in the same way. Of a text that is
    written as a formula, the text."""
    cell = _guarded_inside.sub(r"\1", cell)
    if _is_guarded(cell):
        return cell[1:]
    return formula[1] if cell.startswith("=") and (formula := _as_formula(cell)) else cell


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
    if is_cell:
        text = _guarded_inside.sub(r"\1", text)
    for one in (_in_cell if is_cell else _in_form)(text):
        if one[1] is not None:
            found.append(one[1].replace('""', '"'))
        else:
            found.append(unguarded(one[2].strip()).removeprefix(_MARK) if is_cell else one[2])
    return [item for item in found if item.strip()]


class Writer:
    """A CSV file whose cells are guarded."""

    def __init__(self, file: TextIO, columns: Sequence[str], *, delimiter: str = ",") -> None:
        self._write = csv.writer(file, delimiter=delimiter, lineterminator="\n").writerow
        self.row(columns)

    def row(self, cells: Sequence[str]) -> None:
        """Write one row."""
        self._write([guarded(cell) for cell in cells])


class LongLine(Exception):
    """The line is longer than the maximum."""


class OpenRow(Exception):
    """The row goes on in lines where it does not end, or is longer than the maximum."""


class Lines:
    """The lines of a file, of bounded length. A row without an end returns all of its lines but the first: otherwise
    one extra quotation mark would swallow the rest of the file as its cell.

    No quotation mark in the returned lines closes one that was open before them, or the row would have ended there. So
    a row that begins in one of them and goes on in the next has no end either, and each line is read twice at most.
    """

    def __init__(self, text: TextIO) -> None:
        self._text = text
        #: Returned lines, last first.
        self._back: list[str] = []
        #: Lines of the row being read, and their characters.
        self.taken: list[str] = []
        self.length = 0
        #: The file ended in the middle of a row: a complete row ends before its next line is requested.
        self.ended = False

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        if self.taken and (self._back or self.length > LONGEST):
            raise OpenRow
        line = self._back.pop() if self._back else self._text.readline(LONGEST)
        if not line:
            self.ended = True
            raise StopIteration
        if len(line) == LONGEST and line[-1] not in "\r\n":
            while (rest := self._text.readline(LONGEST)) and rest[-1] not in "\r\n":
                pass
            raise LongLine
        self.taken.append(line)
        self.length += len(line)
        return line

    def begin(self) -> None:
        """Begin a row."""
        self.taken.clear()
        self.length = 0

    def put_back(self) -> None:
        """Return the lines of a row after its first."""
        self._back += self.taken[:0:-1]
        self.ended = False
