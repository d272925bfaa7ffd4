"""Output of commands: as a table for people, as JSON, or as TSV.

Data goes to stdout; messages for people go to stderr.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import inspect
import io
import itertools
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from json import dumps, loads
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TextIO
from unicodedata import category, combining, east_asian_width, normalize
from uuid import UUID

import msgspec
import typer
from typer.core import TyperGroup
from typer.models import ArgumentInfo, OptionInfo

from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.errors import Invalid
from heliograph.base.naming import HARMLESS
from heliograph.base.sentences import Sentence

#: Minimum width of a cut column in a table.
NARROWEST = 12
#: For commands that print only with `show` or `line`: they also get `-o` (`Commands`).
Json = Annotated[bool, typer.Option("--json", help="Print data as JSON on stdout, and everything else on stderr.")]
#: For commands that print CSV by default: they also get `-o`.
JsonOrCsv = Annotated[bool, typer.Option("--json", help="Print JSON instead of CSV.")]
#: For commands that print no records: they have no `-o`.
JsonOnly = Annotated[bool, typer.Option("--json", help="Print data as JSON on stdout, and everything else on stderr.")]
Form = Literal["table", "json", "tsv"]
Output = Annotated[Form | None, typer.Option("--output", "-o", show_default="table", help="Output format.")]
OutputOrCsv = Annotated[Form | None, typer.Option("--output", "-o", show_default="CSV", help="Output format.")]
#: `-o` by the annotation of the parameter `json`, which may be a string.
_OUTPUTS: tuple[tuple[Any, Any], ...] = (
    *((name, Output) for name in ("Json", Json)),
    *((name, OutputOrCsv) for name in ("JsonOrCsv", JsonOrCsv)),
)
#: Signs in ASCII, besides those that decompose, such as an ellipsis.
_SIGNS = str.maketrans({"–": "-", "—": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "→": "->"})
#: The form given with `-o` to the running command.
_output: ContextVar[Form | None] = ContextVar("output", default=None)
#: Whether what is said is a line of the log.
_is_log: ContextVar[bool] = ContextVar("is_log", default=False)


class Commands(typer.Typer):
    """Commands; those that take `json: Json` or `json: JsonOrCsv` also get `-o`."""

    def command(  # type: ignore[override]  # its many options are passed on
        self, name: str | None = None, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Like typer's."""
        add = super().command(name, **options)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            given = function.__annotations__.get("json")
            option = next((option for name, option in _OUTPUTS if name == given), None)
            add(_in_own_options(function if option is None else _with_output(function, option)))
            return function

        return decorate


def _with_output(function: Callable[..., Any], option: Any) -> Callable[..., Any]:
    @functools.wraps(function)
    def command(*args: Any, output: Form | None = None, **values: Any) -> Any:
        if values["json"] and output not in (None, "json"):
            raise typer.BadParameter("conflicts with --json", param_hint="-o")
        token = _output.set(output)
        try:
            return function(*args, **values | {"json": values["json"] or output == "json"})
        finally:
            _output.reset(token)

    signature = inspect.signature(function, eval_str=True)
    added = inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
    command.__signature__ = signature.replace(parameters=[*signature.parameters.values(), added])  # type: ignore[attr-defined]
    command.__annotations__ = function.__annotations__ | {"output": option}
    return command


@contextlib.contextmanager
def in_options(**names: str) -> Iterator[None]:
    """Rules name the API's fields. Refusals raised in this context name options instead: field → option."""
    try:
        yield
    except Invalid as refusal:
        fields = [tuple(one.values()) for one in refusal.details["fields"]]
        renamed = [
            (field, issue, re.sub("`([a-z_]+)`", lambda found: names.get(found[1], found[0]), text))
            for field, issue, text in fields
        ]
        raise Invalid(*renamed, message=None if renamed else refusal.message) from None


def _in_own_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The command, whose refusals name its options if they are called as the API's fields are."""

    @functools.wraps(function)
    def command(*args: Any, **values: Any) -> Any:
        try:
            return function(*args, **values)
        except Invalid:
            with in_options(**_own_names(function)):
                raise

    return command


def _own_names(function: Callable[..., Any]) -> dict[str, str]:
    """The options and arguments of a command by its parameters."""
    names = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        for one in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(one, OptionInfo):
                # In an annotation, the first name is where the default would be.
                declared = [text for text in (one.default, *(one.param_decls or ())) if isinstance(text, str)]
                given = [text.partition("/")[0] for text in declared]
                names[parameter.name] = max(given, key=len) if given else f"--{parameter.name.replace('_', '-')}"
            elif isinstance(one, ArgumentInfo):
                names[parameter.name] = one.metavar or parameter.name.upper()
    return names


class Group(TyperGroup):
    """Lists its commands with the whole first sentence of each: typer's own list ends it where the line ends."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list, wrapped."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(10_000)) for name, one in found if one is not None and not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def group(help: str, *, cls: type[TyperGroup] | None = None) -> typer.Typer:
    """A command with subcommands. Plain text, no shell completion: both cost time at every start."""
    return Commands(
        help=help,
        cls=cls or Group,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def single(name: str, function: Callable[..., None]) -> typer.Typer:
    """A command without subcommands."""
    app = Commands(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name)(function)
    return app


def say(line: str, *, level: Literal["info", "error"] = "info") -> None:
    """A line of text for people, or a line of the log after `say_as_log`. One that cannot be written (a full disk, a
    pipe that nobody reads) is lost; the work that it reports on continues."""
    text = line.translate(HARMLESS)
    if _is_log.get():
        entry = {"event": text, "level": level, "timestamp": clock.now()}
        text = msgspec.json.encode(entry).decode()
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def say_as_log() -> None:
    """From now on, messages are JSON, as every line on stderr has to be once the log is written there."""
    _is_log.set(True)


def form(json: bool) -> Form | None:
    """The output form given to the running command; None: its default."""
    return "json" if json else _output.get()


def is_for_programs(json: bool) -> bool:
    """Whether the running command prints records only: as JSON or TSV, without what people read beside them."""
    return form(json) in ("json", "tsv")


def form_option() -> str:
    """The option that gave the running command its output form, for an error about it."""
    return "--json" if _output.get() is None else "-o"


def show(data: Any, json: bool, columns: Sequence[str] = (), *, limit: int | None = None) -> None:
    """Print a record, or a list of records as a table of `columns`; as JSON, records are complete. `limit`: the number
    of records at which the list was cut, which is said on stderr: a script must not take them for all.

    As TSV, records are lines of their `columns`, without a heading; without columns, a record is one line per value.
    """
    plain = as_plain(data)
    if json:
        print(_speakable(msgspec.json.encode(plain).decode()), flush=True)
    elif _output.get() == "tsv":
        for row in plain if isinstance(plain, list) else [plain]:
            lines = [[row.get(name) for name in columns]] if columns else [list(pair) for pair in row.items()]
            for values in lines:
                print("\t".join(map(cell, values)), file=in_utf8(), flush=True)
    elif isinstance(plain, list):
        if plain:
            cells = [[cell(row.get(name)) for name in columns] for row in plain]
            print(fitted(cells, columns, _width()))
        else:
            say("Nothing to show.")
    else:
        print(record(plain))
    if limit is not None and isinstance(plain, list) and len(plain) >= limit:
        say(f"{limit} are shown, which is the limit; there may be more (--limit).")


def line(
    data: Mapping[str, Any],
    json: bool,
    columns: Sequence[str],
    *,
    colours: Mapping[str, Callable[[Any], int]] = MappingProxyType({}),
    widths: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Print one record of a stream on a line of its own. `colours`: column → colour of its value on a terminal, as a
    parameter of ECMA-48's "select graphic rendition". `widths`: column → minimum width in characters."""
    if json:
        print(_speakable(msgspec.json.encode(as_plain(data)).decode()), flush=True)
    elif _output.get() == "tsv":
        print("\t".join(cell(data.get(name)) for name in columns), file=in_utf8(), flush=True)
    else:
        used = colours if _is_coloured() else {}
        cells = [cell(data.get(name)) for name in columns]
        shown = [
            (f"\x1b[{used[name](data.get(name))}m{text}\x1b[0m" if name in used else text)
            + _padding(text, widths.get(name, 0))
            for name, text in zip(columns, cells, strict=True)
        ]
        print("  ".join(shown).rstrip(), flush=True)


def plain_letters(error: UnicodeError) -> tuple[str, int]:
    """A handler of encoding errors: instead of a character that the terminal's encoding lacks, print its letter without
    accents, or a sign of ASCII; `?` if there is none."""
    assert isinstance(error, UnicodeEncodeError)
    letters = normalize("NFKD", error.object[error.start : error.end].translate(_SIGNS))
    return "".join(one if one.isascii() else "?" for one in letters if not combining(one)), error.end


def in_utf8() -> TextIO:
    """stdout for an export or TSV, which are for programs: in UTF-8, since in another encoding of the terminal names
    would lose their letters."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    return sys.stdout


def as_plain(data: Any) -> Any:
    """Convert to JSON types; times as the API writes them."""
    if isinstance(data, msgspec.Struct):
        return {name: as_plain(getattr(data, name)) for name in data.__struct_fields__}
    if isinstance(data, Mapping):
        return {str(name): as_plain(value) for name, value in data.items()}
    if isinstance(data, list | tuple | set | frozenset):
        return [as_plain(value) for value in data]
    if isinstance(data, datetime):
        return iso(data)
    if isinstance(data, UUID | Path | Sentence):
        return str(data)
    return data


def table(rows: Sequence[Sequence[str]], columns: Sequence[str]) -> str:
    """Columns aligned under their names."""
    lines = [[heading(name) for name in columns], *rows]
    widths = [max(_room(line[at]) for line in lines) for at in range(len(columns))]
    return "\n".join(
        "  ".join(cell + _padding(cell, width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def heading(name: str) -> str:
    """A field's name in words: ours are separated by `_`, the API's by capitals."""
    if re.fullmatch(r"[a-z0-9]+([A-Z][a-z0-9]*)+", name):
        return re.sub("[A-Z]", lambda match: f" {match[0].lower()}", name)
    return name.replace("_", " ")


def fitted(rows: Sequence[Sequence[str]], columns: Sequence[str], width: int | None) -> str:
    """A table of at most `width` characters per line; None: unlimited.

    The widest texts are cut first. Ids are never cut, because people copy them; if it still does not fit, each row
    becomes a record with one line per value.
    """
    widths = [max(_room(heading(name)), *(_room(row[at]) for row in rows)) for at, name in enumerate(columns)]
    if width is None or sum(widths) + 2 * (len(widths) - 1) <= width:
        return table(rows, columns)
    least = [
        widths[at]
        if name == "id" or name.endswith(("_id", "Id"))
        else min(widths[at], max(len(heading(name)), NARROWEST))
        for at, name in enumerate(columns)
    ]
    if sum(least) + 2 * (len(least) - 1) > width:
        return "\n\n".join(record(dict(zip(columns, row, strict=True))) for row in rows)
    while sum(widths) + 2 * (len(widths) - 1) > width:
        at = max((at for at in range(len(widths)) if widths[at] > least[at]), key=lambda at: widths[at])
        widths[at] -= 1
    return table([[_cut(text, most) for text, most in zip(row, widths, strict=True)] for row in rows], columns)


def _cut(text: str, most: int) -> str:
    if _room(text) <= most:
        return text
    ends = itertools.accumulate(map(_room, text))
    return text[: sum(end <= most - 3 for end in ends)] + "..."


def _room(text: str) -> int:
    """A text's width on a terminal: two columns for a wide character, none for a combining mark."""
    if text.isascii():
        return len(text)
    return sum(
        0 if category(one) in ("Mn", "Me", "Cf") else 2 if east_asian_width(one) in ("W", "F") else 1 for one in text
    )


def _padding(text: str, width: int) -> str:
    """The spaces that fill a text's column."""
    return " " * (width - _room(text))


def _is_coloured() -> bool:
    """True if stdout supports colours, and nobody disabled them (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def cuts_texts() -> bool:
    """True if tables are fitted to a terminal."""
    return _width() is not None


def _width() -> int | None:
    """Width of the terminal; None if stdout is a file or a pipe, which gets everything."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _speakable(json: str) -> str:
    """JSON that programs can read in any locale: JSON is UTF-8, so where stdout is not, characters beyond ASCII become
    JSON escapes, as do everywhere the control characters that JSON allows in a text."""
    json = re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", json)
    if json.isascii() or codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8":
        return json
    return dumps(loads(json), separators=(",", ":"))


def record(values: Mapping[str, Any]) -> str:
    """One line per value."""
    width = max((len(heading(name)) for name in values), default=0)
    return "\n".join(f"{heading(name):<{width}}  {cell(value)}" for name, value in values.items())


def cell(value: Any) -> str:
    """Format a value on one line, with a space for each line break, and without characters that terminals interpret."""
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(cell(one) for one in value)
    if isinstance(value, dict):
        return ", ".join(f"{cell(name)}={cell(one)}" for name, one in value.items())
    return " ".join(str(value).splitlines()).translate(HARMLESS) or "-"
