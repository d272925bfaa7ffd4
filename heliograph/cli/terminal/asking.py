"""What commands ask on the terminal: confirmations, and secrets without echo. Questions go to stderr; answers can also
be piped to stdin."""

from __future__ import annotations

import contextlib
import sys

import typer

from heliograph.base.naming import HARMLESS
from heliograph.cli.terminal.console import Problem
from heliograph.cli.terminal.files import BYTE_ORDER_MARK


def confirm(question: str) -> None:
    """Raises Problem unless the answer is yes.

    Not `typer.confirm`: it writes a part of its prompt to stdout, and if nobody can answer says only "Aborted!".
    """
    with contextlib.suppress(OSError):
        print(f"{question.translate(HARMLESS)} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):  # the answer's line break ends the line of the question
        with contextlib.suppress(OSError):
            print(file=sys.stderr, flush=True)
    if not answer:
        raise Problem("nothing was changed, as nobody confirmed it: answer y, or give --yes")
    if answer.strip().lower() not in ("y", "yes"):
        raise Problem("nothing was changed")


def line_on_stdin() -> str:
    """The next line on stdin, without its end, and without the byte order mark that some editors put before a file's
    first one: it would be part of a secret. Raises Problem if it is not text."""
    try:
        line = sys.stdin.readline()
        line.encode()  # in some locales, Python stands in surrogates for what it cannot decode
    except UnicodeError:
        raise Problem("the line on stdin is not UTF-8 text") from None
    return line.removeprefix(BYTE_ORDER_MARK).rstrip("\n")


def typed_secret(called: str = "Password") -> str:
    """A supplier's secret: from the terminal, without echo, or from the first line of stdin."""
    if sys.stdin.isatty():
        return str(typer.prompt(called, hide_input=True, err=True))
    secret = line_on_stdin()
    if not secret:
        raise typer.BadParameter("give --password, or HELIOGRAPH_SUPPLIER_PASSWORD, or a line on stdin")
    return secret
