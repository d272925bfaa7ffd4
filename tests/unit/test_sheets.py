"""CSV files in practice: encodings, delimiters, headers, and cells that begin like a formula."""

from __future__ import annotations

import csv
import gzip
import io
import os
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heliograph.base import csv_files
from heliograph.base.csv_files import guarded, unguarded
from heliograph.base.errors import Invalid
from heliograph.contacts import sheets
from heliograph.contacts.sheets import Reader


def file(place: Path, content: str, encoding: str = "utf-8") -> Path:
    path = place / "people.csv"
    path.write_bytes(content.encode(encoding))
    return path


def read(path: Path, **options: str) -> list[list[str]]:
    reader = Reader(path, sheets.layout(path, **options))  # type: ignore[arg-type]
    try:
        return [row.cells for row in reader.take(1000)]
    finally:
        reader.close()


@pytest.mark.parametrize(
    ("encoding", "found"),
    [
        ("utf-8", "utf-8"),
        ("utf-8-sig", "utf-8-sig"),
        ("utf-16", "utf-16"),
        ("utf-16-le", "utf-16-le"),  # without a byte order mark
        ("utf-16-be", "utf-16-be"),
        ("cp1252", "cp1252"),
    ],
)
def test_encodings_are_found_out(tmp_path: Path, encoding: str, found: str) -> None:
    path = file(tmp_path, "Telemóvel;Nome\n+258841234567;João\n", encoding)
    layout = sheets.layout(path)
    assert (layout.encoding, layout.delimiter, layout.fields) == (found, ";", {"phone": 0, "name": 1})
    assert read(path) == [["+258841234567", "João"]]


def test_a_late_byte_decides_too(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(b"phone,name\n" + b"+258841234567,Ana\n" * 100_000 + b"+258841234568,Jo\xe3o\n")
    assert sheets.layout(path).encoding == "cp1252"


@pytest.mark.parametrize("encoding", ["klingon", "base64", "idna", "utf-16", "utf-32"])
def test_an_encoding_that_does_not_fit_is_refused(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(Invalid) as refused:
        sheets.layout(file(tmp_path, "phone,name\n+258841234567,Ana\n"), encoding=encoding)
    assert (refused.value.details["fields"][0]["field"], encoding in refused.value.message) == ("encoding", True)


def test_a_mark_is_no_part_of_the_first_header(tmp_path: Path) -> None:
    path = file(tmp_path, "\ufeffsep=;\nPhone;Name\n+258841234567;Ana\n")
    layout = sheets.layout(path, columns={"Phone": "phone"}, encoding="utf-8")
    assert (layout.columns, layout.delimiter) == (["Phone", "Name"], ";")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(writer, b"phone\n+258841234567\n")
    with pytest.raises(Invalid, match="pipe is not a regular file"):
        sheets.layout(tmp_path / "pipe")
    os.close(writer)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters_are_found_out(tmp_path: Path, delimiter: str) -> None:
    rows = [["Name", "Phone, mobile", "x"], ["Silva, Ana; dr.", "+258841234567", "a|b"]]
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter).writerows(rows)
    path = file(tmp_path, out.getvalue())
    assert sheets.layout(path, columns={"phone, MOBILE": "phone"}).fields == {"phone": 1, "name": 0}
    assert read(path, columns={"Phone, mobile": "phone"}) == rows[1:]  # type: ignore[arg-type]


def test_commas_within_a_header_do_not_outvote_the_delimiter(tmp_path: Path) -> None:
    path = file(tmp_path, "Telefone;Nome;Morada (rua, porta, andar)\n+258841234567;Ana;x\n")
    assert (sheets.layout(path).delimiter, read(path)) == (";", [["+258841234567", "Ana", "x"]])


def test_a_line_that_names_the_delimiter(tmp_path: Path) -> None:
    path = file(tmp_path, "sep=;\r\nPhone;Name\r\n+258841234567;Ana, B\r\n", "utf-8-sig")
    assert read(path) == [["+258841234567", "Ana, B"]]


@pytest.mark.parametrize(("before", "number"), [("\n\r\n;;\n", 5), ("sep=;\n;;\n", 3), ("", 2)])
def test_empty_lines_before_the_header_are_skipped(tmp_path: Path, before: str, number: int) -> None:
    path = file(tmp_path, f"{before}Phone;Name\n+258841234567;Ana\n")
    layout = sheets.layout(path)
    assert (layout.columns, layout.fields) == (["Phone", "Name"], {"phone": 0, "name": 1})
    reader = Reader(path, layout)
    assert [(row.number, row.cells) for row in reader.take(9)] == [(number, ["+258841234567", "Ana"])]
    reader.close()
    with pytest.raises(Invalid, match="no header"):
        sheets.layout(file(tmp_path, "\n" * 101 + "Phone\n"))


@pytest.mark.parametrize(
    ("before", "number"),
    [
        ("Clientes da loja\n", 3),
        ("Clientes da loja;;\r\n\r\nExportado em 28 de novembro, 2026;;\r\n", 5),
        ("sep=;\nClientes da loja\n;;\n", 4),
        ("Clientes;28/11/2026\n", 3),
        ("Exportado;2026-11-28 10:45:30;\n01.11.2026 - 28.11.2026;;\n", 4),
    ],
)
def test_titles_above_the_header_are_skipped(tmp_path: Path, before: str, number: int) -> None:
    path = file(tmp_path, f"{before}Telemóvel;Nome\n841234567;Ana\n")
    layout = sheets.layout(path)
    assert (layout.columns, layout.delimiter) == (["Telemóvel", "Nome"], ";")
    assert sheets.detect_layout(path.read_bytes(), encoding="utf-8") == layout
    reader = Reader(path, layout)
    assert [(row.number, row.cells) for row in reader.take(9)] == [(number, ["841234567", "Ana"])]
    reader.close()


def test_what_may_be_a_person_is_no_title(tmp_path: Path) -> None:
    for number in ("+258841234567", "21-30-4050", "84/123/4567", "(21) 30.40.5060"):
        rows = f"Ana;{number}\nNome;Telefone\n"
        assert sheets.detect_layout(rows.encode(), encoding="utf-8").columns == ["A", "B"], number
    titled = "Clientes\nNome;Telefone\n"
    as_said = sheets.detect_layout(titled.encode(), encoding="utf-8", has_header=False)
    assert (as_said.preamble, as_said.columns) == (0, ["A"])
    unclosed = 'Clientes "da\nloja\nNome;Telefone\n'
    assert sheets.detect_layout(unclosed.encode(), encoding="utf-8").preamble == 0


@pytest.mark.parametrize(
    ("header", "field"),
    [
        ("Phone Number", "phone"),
        ("phone_number", "phone"),
        ("Telemóvel", "phone"),
        ("MSISDN", "phone"),
        ("Phone 1 - Value", "phone"),
        ("First Name", "first_name"),
        ("firstName", "first_name"),
        ("Último nome", "last_name"),
        ("Etiquetas", "tags"),
        ("Nome completo", "name"),
    ],
)
def test_headers_are_known(tmp_path: Path, header: str, field: str) -> None:
    found = sheets.layout(file(tmp_path, f'"{header}",number of the phone\n'), columns={"number of the phone": "phone"})
    assert found.fields.get(field) == (1 if field == "phone" else 0)
    if field == "phone":
        assert sheets.layout(file(tmp_path, f'"{header}",x\n')).fields == {"phone": 0}


def test_of_two_columns_for_a_field_the_first_counts(tmp_path: Path) -> None:
    assert sheets.layout(file(tmp_path, "name,mobile,phone\n")).fields == {"name": 0, "phone": 1}


@pytest.mark.parametrize(
    ("header", "fields"),
    [
        ("Nome,Apelido,Telemóvel", {"first_name": 0, "last_name": 1, "phone": 2}),
        ("Name,Surname,Phone", {"first_name": 0, "last_name": 1, "phone": 2}),
        ("Nom,Prénom,Portable", {"last_name": 0, "first_name": 1, "phone": 2}),
        ("Vorname,Name,Handy", {"first_name": 0, "last_name": 1, "phone": 2}),
        ("Nome completo,Apelido,Telemóvel", {"name": 0, "last_name": 1, "phone": 2}),
        ("Name,First name,Phone", {"name": 0, "first_name": 1, "phone": 2}),
        ("Name,First name,Last name,Phone", {"name": 0, "first_name": 1, "last_name": 2, "phone": 3}),
    ],
)
def test_a_name_beside_a_part_of_it_is_the_other_part(tmp_path: Path, header: str, fields: dict[str, int]) -> None:
    assert sheets.layout(file(tmp_path, f"{header}\n")).fields == fields


def test_a_name_that_somebody_chose_is_the_whole_one(tmp_path: Path) -> None:
    found = sheets.layout(file(tmp_path, "Nome,Apelido,Telemóvel\n"), columns={"Nome": "name"})
    assert found.fields == {"name": 0, "last_name": 1, "phone": 2}


@pytest.mark.parametrize(
    ("content", "columns", "field"),
    [
        ("", {}, "file"),
        ("\n\n", {}, "file"),
        ("name,email\n", {}, "file"),
        ("name,phone\n", {"mobile": "phone"}, "map"),
        ("name,phone\n", {"phone": "fax"}, "map"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: str, columns: dict[str, str], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        sheets.layout(file(tmp_path, content), columns=columns)
    assert refused.value.details["fields"][0]["field"] == field


def test_a_header_has_no_more_columns_than_a_page_can_offer(tmp_path: Path) -> None:
    header = ",".join(["phone", *("x" * 999)])
    assert len(sheets.layout(file(tmp_path, f"{header}\n")).columns) == 1_000
    with pytest.raises(Invalid, match="more than 1,000 columns"):
        sheets.layout(file(tmp_path, f"{header},x\n"))


@pytest.mark.parametrize("start", sheets.WORKBOOKS)
def test_a_workbook_is_no_table(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(start + b"\x14\x00name,phone\n")
    with pytest.raises(Invalid, match="save the sheet as CSV"):
        sheets.layout(path)


def test_rows_are_counted_as_a_spreadsheet_does(tmp_path: Path) -> None:
    path = file(tmp_path, 'phone,name\n\n1,"two\nlines"\n,\n3,x\n')
    reader = Reader(path, sheets.layout(path))
    assert [(row.number, row.cells) for row in reader.take(10)] == [(3, ["1", "two\nlines"]), (5, ["3", "x"])]
    assert reader.take(10) == []
    assert reader.position == reader.size
    reader.close()


def test_a_quote_that_is_never_closed_ends_no_import(tmp_path: Path) -> None:
    path = file(tmp_path, 'phone,name\n1,"' + "x" * 200_000 + "\n2,y\n")
    reader = Reader(path, sheets.layout(path))
    problems = [row.problem for row in reader.take(10)]
    assert "field larger than field limit" in problems[0]
    reader.close()


@pytest.mark.parametrize(
    "cell", ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3+cmd", "\tA", "+A1", "\nA", "\uff1d1+1", "\uff20SUM(A1)"]
)
def test_what_begins_like_a_formula_is_guarded(cell: str) -> None:
    assert guarded(cell) == "'" + cell


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("Ana;=1+1;", "Ana;'=1+1;"),
        ("Ana,=A1", "Ana,'=A1"),
        ("see:\n@SUM(A1:A9)", "see:\n'@SUM(A1:A9)"),
        ("a;+cmd|' /C calc'!A0;b", "a;'+cmd|' /C calc'!A0;b"),
        ("a\t-HYPERLINK(B1)", "a\t'-HYPERLINK(B1)"),
        ("a;\uff1dA1", "a;'\uff1dA1"),
        ("a;'=A1", "a;''=A1"),
        ("\n=1", "'\n'=1"),
        # No formula takes effect.
        ("milk:\n- milk\n- bread (two)", "milk:\n- milk\n'- bread (two)"),
        ("olá,@ana;-5,+258 84 123", "olá,@ana;-5,+258 84 123"),
        ("a; =1", "a; =1"),
    ],
)
def test_a_formula_after_a_separator_is_guarded(cell: str, shown: str) -> None:
    """The separator depends on the language of the spreadsheet, not on the file."""
    assert (guarded(cell), unguarded(shown)) == (shown, cell)


@pytest.mark.parametrize("cell", ["+258841234567", "+258 84 (123)-4567", "-5", "Ana", "", "a=b"])
def test_numbers_and_names_are_left_as_they_are(cell: str) -> None:
    assert guarded(cell) == cell


@given(st.text(alphabet="=+-@\t\n\uff1d\uff0b'1aA |!;,("))
@example("'=1+1")
@example("''+258")
def test_a_guard_can_be_taken_off(cell: str) -> None:
    shown = guarded(cell)
    assert shown[:1] not in "=@\t" or not shown
    assert unguarded(shown) == cell


def test_a_text_that_is_written_as_a_formula_is_a_text() -> None:
    assert unguarded('="+258841234567"') == "+258841234567"
    assert [unguarded(cell) for cell in ('=A1&"x"', '="a"&"b"', '="a', "=1")] == ['=A1&"x"', '="a"&"b"', '="a', "=1"]


PROBLEMS = {
    # An extra quotation mark: the row that contains it is reported, and those below are rows.
    "to the end of the file": (
        '+258841234567,"Ana\n+258841234568,Bia\n+258841234569,Eva\n',
        [1, 0, 0],
        sheets.OPEN_QUOTE,
    ),
    "to the longest cell": (
        '+258841234567,"Ana\n' + "+258841234568,Bia\n" * 10_000,
        [1, *[0] * 10_000],
        sheets.OPEN_QUOTE,
    ),
    "twice": ('"a\n"b"\n"c\nd\n', [0, 1, 0], sheets.OPEN_QUOTE),
    "in the last row": ('a,b\nc,"d', [0, 0], ""),
    "a cell of several lines": ('a,"b\nb"\nc,d\n', [0, 0], ""),
    "a long line": ("a,b\n" + "x" * 3_000_000 + "\nc,d\n", [0, 1, 0], sheets.LONG_LINE),
    "a long line and no end": ("a,b\n" + "x" * 3_000_000, [0, 1], sheets.LONG_LINE),
    # Each line closes the quote opened before and opens another one, so that no cell gets long.
    "from each line to a million characters": (
        'a","\n' * 300_000 + 'z"\n',
        [*[1] * (sheets.LONGEST // 5), *[0]],
        sheets.OPEN_QUOTE,
    ),
    "a long line below a quotation mark": ('"a\nb\n' + "x" * 3_000_000 + "\nc,d\n", [1, 1, 0, 0], sheets.LONG_LINE),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_what_cannot_be_read_takes_no_other_row_with_it(tmp_path: Path, case: str) -> None:
    content, expected, problem = PROBLEMS[case]
    path = file(tmp_path, "phone,name\n" + content)
    reader = Reader(path, sheets.layout(path))
    rows = [row for taken in iter(lambda: reader.take(100_000), []) for row in taken]
    reader.close()
    assert [int(bool(row.problem)) for row in rows] == expected
    assert problem == "" or problem in {row.problem for row in rows}
    assert [row.number for row in rows] == list(range(2, len(rows) + 2))


def test_no_line_is_read_again_for_each_line_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    one = csv_files.Lines.__next__
    monkeypatch.setattr(csv_files.Lines, "__next__", lambda lines: read.append(one(lines)) or read[-1])
    path = file(tmp_path, "phone,name\n" + 'a","\n' * 1_000)
    reader = Reader(path, sheets.layout(path))
    assert [row.problem for row in reader.take(2_000)] == [*[sheets.OPEN_QUOTE] * 999, ""]
    reader.close()
    assert len(read) <= 2_000


def test_few_rows_are_taken_at_once_if_they_are_long(tmp_path: Path) -> None:
    path = file(tmp_path, "phone,name\n" + ("ab," * 200_000 + "\n") * 5)
    reader = Reader(path, sheets.layout(path))
    assert [len(taken) for taken in iter(lambda: reader.take(2_000), [])] == [2, 2, 1]
    reader.close()


def test_a_file_that_is_one_line_is_not_read_into_memory(tmp_path: Path) -> None:
    path = file(tmp_path, "phone,name\n" + "x" * 40_000_000)
    layout = sheets.layout(path)
    tracemalloc.start()
    try:
        reader = Reader(path, layout)
        assert [row.problem for row in reader.take(10)] == [sheets.LONG_LINE]
        reader.close()
        assert tracemalloc.get_traced_memory()[1] < 16_000_000
    finally:
        tracemalloc.stop()


def test_a_header_that_is_longer_than_any_known_one_is_not_normalized(tmp_path: Path) -> None:
    # Normalized, each of these characters becomes eighteen.
    text = " " * 200 + "Phone," + "\ufdfa" * 60_000 + "\n+258841234567,x\n"
    tracemalloc.start()
    try:
        found = sheets.detect_layout(text.encode(), encoding="utf-8")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.fields == {"phone": 0}
    assert most < 2_000_000


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\0\0\0\x01\x40\x08\x06\0\0\0",
        b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0",
        b"phone\n" + random.Random(1).randbytes(70_000),
        # With a NUL at the place of one in UTF-16.
        gzip.compress(b"phone\n" + random.Random(1).randbytes(70_000), mtime=0),
        gzip.compress(b"phone\n", mtime=0),
        b"\0\0\1\0" + random.Random(1).randbytes(70_000),
    ],
    ids=["PNG", "JPEG", "compressed", "gzip", "little gzip", "icon"],
)
def test_what_is_binary_is_no_table(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(content)
    with pytest.raises(Invalid, match="not a text table"):
        sheets.layout(path)
    with pytest.raises(Invalid, match="not a text table"):
        sheets.detect_layout(content, encoding=sheets.encoding_of(content, is_utf8=False))


def test_a_stray_control_character_is_in_its_row(tmp_path: Path) -> None:
    rows = [["phone", "name"], ["+258841234567", "\x02\x1b"], ["+258841234568", "Ana"]]
    assert read(file(tmp_path, "\n".join(",".join(row) for row in rows))) == rows[1:]


def test_white_space_and_the_end_of_a_file_from_dos_are_text(tmp_path: Path) -> None:
    assert read(file(tmp_path, "phone\tname\r\n+258841234567\tAna\x0bB\r\n\f\x1a")) == [
        ["+258841234567", "Ana\x0bB"],
        ["\f\x1a"],
    ]


@pytest.mark.parametrize("date", ["2026-10-31", "31/10/2026", "31.10.2026"])
def test_a_date_in_a_header_makes_it_no_row(date: str) -> None:
    """The header was imported as a person, and its date was taken for the column of the numbers."""
    found = sheets.detect_layout(f"Telefone;Nome;{date}\n841234567;Ana;100,00\n".encode(), encoding="utf-8")
    assert (found.has_header, found.fields) == (True, {"phone": 0, "name": 1})
    # Without a word for it, it may be a row.
    found = sheets.detect_layout(b"841234567;Ana;100,00\n", encoding="utf-8")
    assert (found.has_header, found.fields) == (False, {"phone": 0})
