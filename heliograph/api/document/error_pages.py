"""The documentation of each error: `errors.toml`, from which its page and `docs/errors.md` are generated."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from heliograph.api.shapes.envelope import ERRORS
from heliograph.base.errors import Refusal, kinds


class Error(msgspec.Struct, frozen=True):
    """Documentation of an error code."""

    code: str
    status: int
    #: When it occurs.
    cause: str
    #: What to do.
    remedy: str
    #: Fields of `error.details` and their meaning; "" where the name is self-explanatory.
    details: dict[str, str] = {}
    #: An example of `details`, for errors of the API that have any.
    example: dict[str, Any] = {}


@cache
def errors() -> tuple[Error, ...]:
    """Every error, by status and then in the order of the file."""
    listed = tomllib.loads(Path(__file__).with_name("errors.toml").read_text("utf-8"))
    found = [msgspec.convert({"code": code} | one, Error) for code, one in listed.items()]
    return tuple(sorted(found, key=lambda one: one.status))


def address(code: str) -> str:
    """Path of an error's page, below the service's public address."""
    return f"{ERRORS}/{code}"


def error_pages(more: str) -> dict[str, tuple[str, str]]:
    """Title and Markdown of every error's page, and of their index, by path. `more`: address of the guide's page on
    errors."""
    meanings = {one.code: _first_paragraph(one) for one in kinds()}
    rows = "\n".join(f"| [`{one.code}`]({address(one.code)}) | {one.status} | {one.cause} |" for one in errors())
    told = (
        "# Errors\n\nBase decisions on `error.code`. Quote `error.requestId` when you ask for help; "
        f"`error.docsUrl` links to the page for the code. [More about errors]({more}).\n\n"
    )
    pages = {ERRORS: ("Errors", f"{told}| Code | HTTP | When |\n| --- | --- | --- |\n{rows}\n")}
    for one in errors():
        pages[address(one.code)] = one.code, _text(one, meanings.get(one.code, ""))
    return pages


def _text(one: Error, meaning: str) -> str:
    parts = [f"# `{one.code}`", f"HTTP {one.status}. {meaning}".strip(), f"## When\n\n{one.cause}"]
    parts.append(f"## What to do\n\n{one.remedy}")
    if one.details:
        rows = "\n".join(f"| `{name}` | {text} |" for name, text in one.details.items())
        parts.append(f"## `error.details`\n\n| Field | Holds |\n| --- | --- |\n{rows}")
    parts.append(f"[All errors]({ERRORS})")
    return "\n\n".join(parts)


def _first_paragraph(kind: type[Refusal]) -> str:
    return " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())
