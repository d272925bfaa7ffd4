"""Files that commands read and write: those written are readable only by their owner; errors name the file."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer

from heliograph.base import csv_files
from heliograph.base.process import private_files
from heliograph.cli.terminal.console import Problem

#: Some editors begin a file in UTF-8 with it.
BYTE_ORDER_MARK = "\ufeff"
#: Standard output, as the name of a file.
STDOUT = Path("-")


def unless_stdout(path: Path | None) -> Path | None:
    """The file that an option or argument names; None: standard output, which can also be written as `-`."""
    return None if path == STDOUT else path


#: The argument of commands that export one file.
OutFile = Annotated[
    Path | None,
    typer.Argument(
        dir_okay=False, writable=True, callback=unless_stdout, help="File to write; defaults to stdout (-)."
    ),
]


def writable(path: Path) -> Path:
    """Check that a file can be created at the path. Raises Problem: better now than after a million rows, or after the
    export was recorded in the audit log."""
    try:
        is_free = not stat.S_ISDIR(path.stat().st_mode) and os.access(path, os.W_OK)
    except FileNotFoundError:
        is_free = os.access(path.parent, os.W_OK)
    except OSError:  # as for a name that is too long, in whatever folder
        is_free = False
    if not is_free:
        raise Problem(f"{path} cannot be written: choose another path")
    return path


@contextlib.contextmanager
def writing(path: Path, *, encoding: str) -> Iterator[TextIO]:
    """A file to write rows to. Raises Problem if it cannot be opened or written."""
    try:
        with private_files.open_text(path, encoding=encoding) as file:
            yield file
    except (ConnectionError, TimeoutError):
        raise  # an error of the database, which is read at the same time
    except OSError as error:
        raise Problem(f"{path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def reading(path: Path) -> Iterator[TextIO]:
    """A CSV file to read once, also from a pipe. Raises Problem if it is not in UTF-8, or UTF-16 with its mark."""
    try:
        with path.open("rb") as raw:
            yield io.TextIOWrapper(raw, encoding=csv_files.marked_encoding(raw.peek(3)) or "utf-8", newline="")
    except UnicodeDecodeError:
        raise Problem(f"{path} is not in UTF-8: in a spreadsheet, save the sheet as CSV UTF-8") from None
