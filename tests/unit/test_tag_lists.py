"""Several tags in one text: any tag, whatever it contains, is read back as one tag."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heliograph.base import csv_files
from heliograph.base.csv_files import guarded
from heliograph.contacts.importing import Options, batch_of
from heliograph.contacts.sheets import Layout, Row

TAGS = st.lists(st.text("a=+*'\";,|: é", min_size=1).map(lambda text: " ".join(text.split())).filter(bool), unique=True)


@given(TAGS)
def test_a_form_returns_the_tags_that_it_showed(tags: list[str]) -> None:
    assert [" ".join(tag.split()) for tag in csv_files.split(csv_files.joined(tags))] == tags


@given(TAGS)
@example(["a", '="a"', "* a"])
def test_a_file_returns_the_tags_that_were_exported(tags: list[str]) -> None:
    layout = Layout("utf-8", ",", ["phone", "tags"], {"phone": 0, "tags": 1}, 0)
    row = Row(2, ["+258841234567", guarded(csv_files.joined(tags, ";"))])
    (found,) = [entry for entry, _ in batch_of([row], layout, Options(), 0).entries.values()]
    assert list(found.tags) == tags


@pytest.mark.parametrize(
    ("cell", "tags"),
    [
        ("VIP; maputo,x|y", ["VIP", "maputo", "x", "y"]),
        ("* myContacts ::: Friends", ["myContacts", "Friends"]),
        (' "lisbon, pt" ; vip ', ["lisbon, pt", "vip"]),
        ('5" screens;"open', ['5" screens', '"open']),
        ("'=vip;'+x; ;\n", ["=vip", "+x"]),
        ('"";" "', ['""']),
    ],
)
def test_tags_as_files_have_them(cell: str, tags: list[str]) -> None:
    assert csv_files.split(cell, is_cell=True) == tags


def test_many_marks_cost_no_more_than_their_length() -> None:
    """If it were quadratic, these would take minutes."""
    for cell in ('"' * 300_000, '"x;' * 100_000, '"""x;' * 60_000, '"x;""y' * 50_000, ";" * 300_000):
        assert csv_files.split(cell, is_cell=True) is not None


def memory(work: Callable[[], object]) -> tuple[int, int]:
    """Bytes that remain in use after some work, and those that it took at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


def test_a_long_mark_that_is_never_closed_takes_no_memory() -> None:
    cell = '"' + "x" * 1_000_000
    assert memory(lambda: csv_files.split(cell, is_cell=True))[1] < 20_000_000


def test_long_cells_of_tags_are_not_kept() -> None:
    """A file of 200 MB would stay in the memory of its worker, and that of the next file as well."""
    layout = Layout("utf-8", ",", ["phone", "tags"], {"phone": 0, "tags": 1}, 0)

    def read(name: str) -> None:
        for number in range(50):
            row = Row(2, ["+258841234567", f"{name} {number}" + " " * 20_000])
            assert len(batch_of([row], layout, Options(), 0).entries) == 1

    read("warm")
    assert memory(lambda: read("vip"))[0] < 200_000
