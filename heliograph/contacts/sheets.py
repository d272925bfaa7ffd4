"""Reading CSV files of contacts: encodings, delimiters and headers.

The rule nobody may break: cells that cannot be parsed are reported, with the row and the reason, and never guessed.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from heliograph.base.csv_files import LONGEST, Lines, LongLine, OpenRow, is_binary, marked_encoding
from heliograph.base.errors import Invalid

#: The fields that a column can contain, and their known headers: lower case, letters and digits only, without accents.
FIELDS: dict[str, tuple[str, ...]] = {
    "phone": (
        *("phone", "phonenumber", "phoneno", "mobile", "mobilephone", "mobilenumber", "mobileno", "cell", "cellphone"),
        *("cellnumber", "telephone", "telephonenumber", "tel", "msisdn", "number", "recipient", "to", "phone1value"),
        *("primaryphone", "whatsapp", "telefone", "telemovel", "celular", "contacto", "numero", "telefono", "movil"),
        *("handy", "handynummer", "telefon", "telefonnummer", "mobil", "portable"),
    ),
    "name": (
        *("name", "fullname", "displayname", "contactname", "customername", "customer", "nome", "nomecompleto"),
        *("nombre", "nombrecompleto", "nom", "nomcomplet"),
    ),
    "first_name": (*("firstname", "first", "givenname", "forename", "primeironome", "primeiro", "prenom", "vorname"),),
    "last_name": (
        *("lastname", "last", "surname", "familyname", "ultimonome", "sobrenome", "apelido", "apellido", "apellidos"),
        *("nachname", "nomdefamille"),
    ),
    "tags": (
        *("tags", "tag", "labels", "label", "groups", "group", "groupmembership", "categories", "category", "segment"),
        *("etiquetas", "etiqueta", "grupos", "grupo", "categorias", "categoria"),
    ),
}
#: Headers of a whole name that mean a part of it where another column has the other part: `Nome; Apelido`, `Name;
#: Vorname`.
_PARTIAL = frozenset({"name", "nome", "nombre", "nom"})
#: Headers of the first name in languages whose header of the last name is just "name".
_FIRST = frozenset({"prenom", "vorname"})
#: Longer headers are unknown: normalizing makes eighteen characters of some.
_LONGEST_HEADER = 100
_FIELD_OF = {header: field for field, headers in FIELDS.items() for header in headers}

#: A cell with this many digits and no letters is a number, so its row is not a header.
_DIGITS = 7
_DELIMITERS = (",", ";", "\t", "|")
#: Maximum length of a header, so that a file without line breaks is not read into memory, and of its cells: a page
#: shows a choice for each.
_HEADER, _MOST_COLUMNS = 65_536, 1_000
#: Maximum lines before the header, and an empty one, also as a spreadsheet writes it: `,,,`.
_MOST_BEFORE = 100
#: Maximum lines of titles above the header.
_MOST_TITLES = 20
#: A date, which above a header says of when a list is.
_DATE = re.compile(r"(?<!\d)(?:20\d\d([-/.])[01]?\d\1[0-3]?\d|[0-3]?\d([-/.])[0-3]?\d\2(?:19|20)\d\d)(?!\d)")
_is_blank = re.compile(r"[ \t,;|]*(?:\r\n|\r|\n)").match
_line = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)").match
#: Why a row cannot be read, in addition to errors of the CSV reader.
OPEN_QUOTE = 'a quotation mark (") is not closed, in this row or one above it'
LONG_LINE = f"the line has more than {LONGEST:,} characters"
#: First bytes of workbooks, which are not text tables, and the error message about them.
WORKBOOKS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")
WORKBOOK = "This is a workbook. In the spreadsheet, save the sheet as CSV and choose that file."
BINARY = "This is not a text table. Save it as CSV and choose that file."
#: First bytes of files compressed by gzip. A NUL may follow, so that a small one could be taken for UTF-16.
GZIP = b"\x1f\x8b\x08"
#: The encoding used by western spreadsheets when they do not write UTF-8.
FALLBACK = "cp1252"


class Layout(msgspec.Struct, frozen=True):
    """How to read a file."""

    encoding: str
    delimiter: str
    #: The header's cells.
    columns: list[str]
    #: Field (of FIELDS) → index of its column.
    fields: dict[str, int]
    #: Lines before the header: empty ones, titles, and `sep=;`, which spreadsheets write.
    preamble: int
    #: Without a header the columns are called A, B, C …
    has_header: bool = True


class Row(msgspec.Struct, gc=False):
    """A row below the header. `number`: as in a spreadsheet. `problem`: why it cannot be read."""

    number: int
    cells: list[str]
    problem: str = ""


def layout(path: Path, *, columns: Mapping[str, str] | None = None, encoding: str | None = None) -> Layout:
    """Detect how to read a file. `columns`: header → field, which takes precedence over known headers.

    Without `encoding`, it is that of `encoding_of`. Raises Invalid (`file`, `map`, `encoding`): it is empty, a workbook
    or not a regular file, it is not in that encoding, a column is missing, no column has phone numbers.
    """
    if not path.is_file():
        raise Invalid(
            ("file", "format", f"{path} is not a regular file: it is read several times, which a pipe cannot be")
        )
    with path.open("rb") as raw:
        if raw.read(4) in WORKBOOKS:
            raise Invalid(("file", "format", WORKBOOK))
    encoding = encoding or _encoding(path)
    try:
        with path.open("rb") as raw, _text(raw, encoding) as text:
            sample = text.read(_HEADER)
            raw.seek(0)
            _demand_text(sample, raw.read(_HEADER))
    except LookupError:
        raise Invalid(("encoding", "unknown", f"{encoding!r} is not an encoding of texts")) from None
    except UnicodeError as error:
        raise _unreadable(encoding, error) from None
    found = _looked(sample, encoding)
    return msgspec.structs.replace(found, fields=_fields(found.columns, columns or {}))


def detect_layout(
    sample: bytes, *, encoding: str, delimiter: str | None = None, has_header: bool | None = None
) -> Layout:
    """Detect a file's layout from its beginning, or apply the given one; no column need be recognized.

    Raises Invalid (`file`, `encoding`): it is empty, or cannot be read that way.
    """
    try:
        text = _decoded(sample, encoding)
        _demand_text(text, sample)
    except LookupError:
        raise Invalid(("encoding", "unknown", f"{encoding!r} is not an encoding of texts")) from None
    except UnicodeError as error:
        raise _unreadable(encoding, error) from None
    found = _looked(text, encoding, delimiter, has_titles=has_header is not False)
    fields = _known(found.columns, {})
    # Other columns may have dates for headers: `Phone; Balance; 2026-10-31`.
    is_header = "phone" in fields or not any(map(_is_number, found.columns))
    if is_header if has_header is None else has_header:
        return msgspec.structs.replace(found, fields=fields)
    numbers = [at for at, cell in enumerate(found.columns) if _is_number(cell)]
    fields = {"phone": numbers[0]} if numbers else {}
    letters = [_letters(at) for at in range(len(found.columns))]
    return msgspec.structs.replace(found, columns=letters, fields=fields, has_header=False)


def encoding_of(start: bytes, *, is_utf8: bool) -> str:
    """The encoding of a file that begins with these bytes: that of its byte order mark; UTF-16 if one of its first two
    characters is ASCII with a NUL; UTF-8 if the whole file is valid UTF-8; else that of Western spreadsheets."""
    if (marked := marked_encoding(start)) is not None:
        return marked
    if b"\0" in start[:4]:
        return "utf-16-be" if b"\0" in start[:4:2] else "utf-16-le"
    return "utf-8" if is_utf8 else FALLBACK


def _demand_text(text: str, start: bytes) -> None:
    """Raises Invalid if neither this text nor what the same bytes are in UTF-16 can begin a table: nothing but a person
    notices UTF-16 without a mark if its first letters are not ASCII."""
    others = (_decoded(start, one) for one in ("utf-16-le", "utf-16-be"))
    tables = ("\n" in wide and "\ufffd" not in wide and not is_binary(wide) for wide in others)
    if start.startswith(GZIP) or (is_binary(text) and not any(tables)):
        raise Invalid(("file", "format", BINARY))


def _decoded(start: bytes, encoding: str) -> str:
    return codecs.getincrementaldecoder(encoding)(errors="replace").decode(start[:_HEADER])


def _unreadable(encoding: str, error: UnicodeError) -> Invalid:
    # Bytes that do not fit become U+FFFD. What remains is UTF-16 and UTF-32 without a mark of the byte order.
    return Invalid(("encoding", "format", f"the file cannot be read as {encoding}: {error}"))


def _looked(sample: str, encoding: str, delimiter: str | None = None, *, has_titles: bool = True) -> Layout:
    sample = sample.removeprefix("\ufeff")
    first, _, rest = sample.partition("\n")
    preamble = 0
    if match := re.fullmatch(r'"?sep=(.)"?\r?', first):
        preamble, delimiter, sample = 1, delimiter or match[1], rest
    while preamble < _MOST_BEFORE and (blank := _is_blank(sample)):
        preamble, sample = preamble + 1, sample[blank.end() :]
    if has_titles and not _is_blank(sample):
        above, sample = _below_titles(sample, delimiter)
        preamble += above
    delimiter = delimiter or _delimiter(sample)
    try:
        header = next(csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter), [])
    except csv.Error as error:
        raise Invalid(("file", "format", f"the header cannot be read: {error}")) from None
    if not any(cell.strip() for cell in header):
        raise Invalid(("file", "required", "the file has no header row"))
    if len(header) > _MOST_COLUMNS:
        raise Invalid(("file", "format", f"the header has more than {_MOST_COLUMNS:,} columns"))
    return Layout(encoding, delimiter, header, {}, preamble)


def _below_titles(sample: str, delimiter: str | None) -> tuple[int, str]:
    """(number of lines above the header, the text from the header on): people write above it what the list is. Nothing
    is a title unless a row below it names the column of phone numbers, before any row has a number."""
    rest = sample
    for above in range(_MOST_TITLES + 1):
        try:
            cells = next(csv.reader(io.StringIO(rest, newline=""), delimiter=delimiter or _delimiter(rest)), [])
        except csv.Error:
            break
        if "phone" in _known(cells, {}):
            return above, rest
        line = _line(rest)
        # A quotation mark that is not closed: the row has more lines than this one.
        if line is None or line[0].count('"') % 2 or any(_is_number(_DATE.sub("", cell)) for cell in cells):
            break
        rest = rest[line.end() :]
    return 0, sample


def _is_number(cell: str) -> bool:
    return sum(map(str.isdigit, cell)) >= _DIGITS and not any(map(str.isalpha, cell))


def _letters(at: int) -> str:
    """The name of a column in a spreadsheet."""
    name = ""
    at += 1
    while at:
        at, rest = divmod(at - 1, 26)
        name = chr(65 + rest) + name
    return name


class Reader:
    """The rows of a file below the header. Memory does not grow with the file."""

    def __init__(self, source: Path | BinaryIO, found: Layout) -> None:
        self._raw = source.open("rb") if isinstance(source, Path) else source
        self.size = self._raw.seek(0, io.SEEK_END)
        self._raw.seek(0)
        self._text = _text(self._raw, found.encoding)
        self._lines, self._delimiter = Lines(self._text), found.delimiter
        self._csv = csv.reader(self._lines, delimiter=found.delimiter)
        self._number = 0
        # Lines before the first row count even if they are empty.
        self._first = found.preamble + found.has_header
        self._rows = self._read()
        before = [row for _, row in zip(range(self._first), self._rows, strict=False)]
        # Spreadsheets show empty rows and titles, and not the line `sep=;`.
        is_hidden = found.preamble > 0 and before and "".join(before[0].cells[:1]).startswith("sep=")
        self._number = found.preamble - bool(is_hidden) + found.has_header
        self._first = 0

    @property
    def position(self) -> int:
        """Bytes read."""
        return self._raw.tell()

    def take(self, count: int) -> list[Row]:
        """The next rows, up to `count`, and fewer if they are long; none: the end. Empty rows are omitted."""
        taken: list[Row] = []
        characters = 0
        for row in self._rows:
            taken.append(row)
            characters += self._lines.length
            if len(taken) >= count or characters > LONGEST:
                break
        return taken

    def close(self) -> None:
        """Close the file."""
        self._text.close()

    def _open(self) -> Row:
        """The row being read, without an end: only its first line is taken."""
        first = self._lines.taken[0]
        self._lines.put_back()
        return Row(self._number, first.rstrip("\r\n").split(self._delimiter), OPEN_QUOTE)

    def _read(self) -> Iterator[Row]:
        while True:
            self._number += 1
            self._lines.begin()
            try:
                cells = next(self._csv)
            except StopIteration:
                return
            except OpenRow:
                yield self._open()
                continue
            except LongLine:
                if self._lines.taken:
                    yield self._open()
                    self._number += 1
                yield Row(self._number, [], LONG_LINE)
                continue
            except csv.Error as error:
                several = len(self._lines.taken) > 1
                yield self._open() if several else Row(self._number, [], f"cannot be read: {error}")
                continue
            if self._lines.ended and len(self._lines.taken) > 1:
                yield self._open()
                continue
            if any(cells) or self._number <= self._first:
                yield Row(self._number, cells)


def header_of(found: Layout, field: str) -> str | None:
    """The header of a field's column."""
    return found.columns[found.fields[field]] if field in found.fields else None


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while piece := file.read(1 << 20):
                decoder.decode(piece)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return encoding_of(start, is_utf8=False)
    return encoding_of(start, is_utf8=True)


def _text(raw: BinaryIO, encoding: str) -> io.TextIOWrapper:
    # Undecodable bytes become U+FFFD: one bad byte must not make a whole file unreadable.
    return io.TextIOWrapper(raw, encoding, errors="replace", newline="")


def _delimiter(sample: str) -> str:
    def fit(delimiter: str) -> tuple[int, int]:
        """How many columns are recognized, and how many there are: a header such as `Address (street, number)` has more
        commas than the semicolons that separate columns."""
        try:
            header = next(csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter), [])
        except csv.Error:
            return 0, 0
        return len(_known(header, {})), len(header)

    return max(_DELIMITERS, key=fit)  # the first among equals


def _fields(header: Sequence[str], columns: Mapping[str, str]) -> dict[str, int]:
    fields = _known(header, columns)
    if "phone" not in fields:
        raise Invalid(
            (
                "file",
                "required",
                (
                    f"none of the columns {_listed(header)} is recognized as the phone number. The first row "
                    "must be a header; use `--map COLUMN=phone` to name the column"
                ),
            )
        )
    return fields


def _known(header: Sequence[str], columns: Mapping[str, str]) -> dict[str, int]:
    fields: dict[str, int] = {}
    chosen = set()
    for name, field in columns.items():
        if field not in FIELDS:
            raise Invalid(("map", "enum", f"{field!r} is not a field; the fields are {', '.join(FIELDS)}"))
        places = [at for at, cell in enumerate(header) if cell.strip().casefold() == name.strip().casefold()]
        if not places:
            raise Invalid(("map", "unknown", f"the file has no column {name!r}; its columns are {_listed(header)}"))
        fields[field] = places[0]
        chosen.add(places[0])
    for at, cell in enumerate(header):
        known = _FIELD_OF.get(_folded(cell))
        if known is not None and at not in chosen:
            fields.setdefault(known, at)
    whole, first, last = (fields.get(field) for field in ("name", "first_name", "last_name"))
    if whole is not None and whole not in chosen and _folded(header[whole]) in _PARTIAL:
        if first is None and last is not None:
            fields["first_name"] = fields.pop("name")
        elif first is not None and last is None and _folded(header[first]) in _FIRST:
            fields["last_name"] = fields.pop("name")
    return fields


def _folded(header: str) -> str:
    header = header.strip()
    if len(header) > _LONGEST_HEADER:
        return ""
    plain = unicodedata.normalize("NFKD", header).casefold()
    return "".join(character for character in plain if character.isalnum())


def _listed(header: Sequence[str]) -> str:
    return ", ".join(repr(cell[:40]) for cell in header[:30])
