"""No regular expression of ours takes more than linear time for any input: clients choose the texts.

Every expression defined in a module is found, and applied to texts that repeat its own parts; eight times as long a
text may take eight times as long, with room to spare, and not 64 times. The measure is this thread's processor time.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest

import heliograph
from heliograph.base.errors import Invalid
from heliograph.campaigns import template

#: Pieces of texts, besides those of the expression itself.
PIECES = (
    " ",
    "\t",
    "\n",
    "a",
    "A",
    "_",
    "0",
    "1",
    ".",
    "-",
    "@",
    ":",
    "/",
    ";",
    "`",
    '"',
    "{",
    "{{",
    "}}",
    "[",
    "é",
    "\u0301",
)
METHODS = ("match", "search", "fullmatch", "sub", "findall", "finditer", "split")
#: Lengths of the texts: a factor of eight.
SHORT, LONG = 150, 1_200
#: Eight times as long, with a factor of three to spare; and a time too short to compare, in seconds.
MOST, FLOOR = 24.0, 20e-6


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(heliograph.__path__, "heliograph."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def expressions() -> Iterator[tuple[str, Any, set[str]]]:
    """(name, expression, the methods with which it is used)"""
    for module in modules():
        assert module.__file__ is not None
        with open(module.__file__, encoding="utf-8") as source:
            text = source.read()
        for name, value in vars(module).items():
            if f"{name} = " not in text:  # it was imported
                continue
            bound = getattr(value, "__self__", None)
            if isinstance(bound, re.Pattern):
                yield f"{module.__name__}.{name}", bound, {value.__name__}
            elif isinstance(value, re.Pattern):
                used = set(re.findall(rf"\b{name}\.({'|'.join(METHODS)})\b", text))
                yield f"{module.__name__}.{name}", value, used or set(METHODS[:3])


EXPRESSIONS = {f"{name} {method}": (one, method) for name, one, methods in expressions() for method in sorted(methods)}


def pieces(pattern: str) -> list[str]:
    """Literals of an expression; short ones as they are."""
    literals = re.findall(
        r"(?:[A-Za-z0-9 :/@;={}\"'`_-]|\\[.{}\[\]])+", re.sub(r"\(\?P?<?\w+>?|\[[^]]*\]", " ", pattern)
    )
    plain = {one.replace("\\", "") for one in literals}
    return sorted(one for one in plain if 1 <= len(one) <= 24)


def texts(pattern: str) -> Iterator[Callable[[int], str]]:
    own = pieces(pattern)
    for head in ["", "{{", *own]:
        for piece in (*PIECES, *own):
            for tail in ("", "\x00", ":x"):
                yield lambda length, head=head, piece=piece, tail=tail: head + piece * (length // len(piece)) + tail


def seconds(run: Callable[[], object], best_of: int) -> float:
    best = float("inf")
    for _ in range(best_of):
        begun = time.thread_time()
        run()
        best = min(best, time.thread_time() - begun)
    return best


def runner(one: Any, method: str, text: str) -> Callable[[], object]:
    value = text.encode() if isinstance(one.pattern, bytes) else text
    if method == "sub":
        return lambda: one.sub(value[:0], value)
    if method == "finditer":
        return lambda: list(one.finditer(value))
    return lambda: getattr(one, method)(value)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_no_expression_takes_more_than_linear_time(name: str) -> None:
    one, method = EXPRESSIONS[name]
    pattern = one.pattern.decode("latin-1") if isinstance(one.pattern, bytes) else one.pattern
    for make in texts(pattern):
        before = max(FLOOR, seconds(runner(one, method, make(SHORT)), 1))
        run = runner(one, method, make(LONG))
        took = seconds(run, 1)
        if took > MOST * before:
            took = min(took, seconds(run, 10))
        assert took <= MOST * before, f"{make(12)!r}: {LONG} characters take {took:.6f} s, {SHORT} {before:.6f} s"


def test_the_places_of_a_text_are_found_in_linear_time() -> None:
    """An input that used to block a process for seconds: an opening bracket and many spaces."""

    def check(text: str) -> None:
        with contextlib.suppress(Invalid):
            template.check_places(text, "message_template")

    for piece, tail in ((" ", ""), (" ", "x"), ("{{ ", ""), ("{{ }} ", "")):
        short, long = ("{{" + piece * number + tail for number in (1_600, 12_800))
        before = max(5 * FLOOR, seconds(partial(check, short), 5))
        assert seconds(partial(check, long), 5) <= MOST * before, (piece, tail)


def test_the_spaces_around_a_place_do_not_matter() -> None:
    fill = template.filler("{{  name\t}}, {{phone}}: {{ x y")
    assert fill(("+258841234567", "Ana", "", "")) == "Ana, +258841234567: {{ x y"
    assert template.places("{{ name }}{{name}}{{\nphone }}") == {"name", "phone"}
    with pytest.raises(Invalid, match="unknown placeholder"):
        template.check_places("{{ first name }}", "message_template")
