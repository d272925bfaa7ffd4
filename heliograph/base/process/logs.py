"""Logs: lines on stderr, JSON for machines or text for people.

The rule nobody may break: no secret, no message text and no full phone number is ever written. Callers leave them out;
this file is the safety net, because somebody will forget one day. And a line that cannot be written (the disk is full,
the reader of the pipe is gone, or stands still) never fails the work that logs it, nor keeps it waiting.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import stat
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO, cast

import msgspec
import structlog

from heliograph.base.naming import HARMLESS
from heliograph.base.phones import masked
from heliograph.base.process import spans
from heliograph.base.process.settings import Settings, SettingsError

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

#: Values with these names are dropped, whatever they are.
DROPPED = frozenset(
    {
        "app_secret",
        "authorization",
        "body",
        "database_url",
        "owner_database_url",
        "message",
        "password",
        "raw",
        "secret",
        "secret_key",
        "signing_secret",
        "text",
        "token",
        "verify_token",
        "x_api_key",
    }
)
#: Values with these names are phone numbers, whatever their format.
NUMBERS = frozenset({"to", "from", "recipient", "sender", "phone", "source", "destination", "msisdn"})

_KEY = re.compile(r"\bhg_(live|test)_\w+")
# PostgreSQL's message about a rejected row contains all of its values, and a text may have several lines: it ends with
# the last parenthesis, but before another exception of the same traceback.
_ROW = re.compile(
    r"\n?DETAIL:(?:  (?:Failing row contains|Key) \("
    r"(?:(?!\n\n(?:The above exception|During handling)|\n[ |]*\+-)[\s\S]){0,8000}\)[^\n]*|[^\n]*)"
)
# asyncpg's message about a value that it cannot send begins with the value.
_ARGUMENT = re.compile(r"(invalid input for query argument \$\d+: )[^\n]* (?=\()")
# Meta's tokens: by prefix, or by position.
_TOKEN = re.compile(r"\bEAA\w{16,}|(?<=\bBearer )\S+|(?<=_token=)[^&\s'\"]+")
_PASSWORD = re.compile(r"(\b\w++://[^:@/\s]*+):[^@/\s]++@")
# Not part of a UUID, a time, a decimal fraction or a longer word.
_NUMBER = re.compile(r"(?<![\w.:-])\+?[1-9][0-9]{8,14}(?![\w:-])")
_DIGITS = re.compile(r"\+?[0-9]{5,}")


#: Seconds that a line waits for room in a pipe or on a terminal, and the bytes for which room is certain then: one page
#: of a pipe, which is also what is written without another process's line in between (PIPE_BUF). A socket, such as
#: journald's, has more, and a file needs none.
ROOM_WITHIN, PAGE, MORE = 1.0, 4_096, 32_768


class _Stderr:
    """stderr, for lines that nobody may have to wait for. If its reader stands still (a collector that hangs, a
    terminal on hold), a pipe or terminal is full after some lines, and each further write would wait, and with it the
    whole process. Lines that find no room are lost and counted."""

    def __init__(self) -> None:
        self._lost = 0
        #: The last line was lost in the middle.
        self._is_cut = False

    def write(self, text: str) -> None:
        """Write whole lines."""
        text = f"\n{text}" if self._is_cut else text
        piece = _certain() if text.isascii() else _certain() // 4
        for start in range(0, len(text), piece):
            if not self.has_room():
                self._lost += 1
                self._is_cut = self._is_cut or start > 0
                return
            sys.stderr.write(text[start : start + piece])
            sys.stderr.flush()
        self._is_cut = False

    def flush(self) -> None:
        """Nothing is kept."""

    def has_room(self) -> bool:
        """Whether a piece can be written without waiting for a reader."""
        found = select.poll()
        try:
            found.register(sys.stderr.fileno(), select.POLLOUT)
            return bool(found.poll(0 if self._lost else ROOM_WITHIN * 1000))
        except (OSError, ValueError):  # it is no file, or closed: writing says so
            return True

    def lost_before(self) -> int:
        """The lines lost before the last one was written, to be reported once; 0: none, or it was lost, too."""
        if self._lost and self.has_room():
            lost, self._lost = self._lost, 0
            return lost
        return 0


_stderr = _Stderr()


def _certain() -> int:
    """The bytes for which room is certain if there is any."""
    try:
        mode = os.fstat(sys.stderr.fileno()).st_mode
    except (OSError, ValueError):  # it is no file, or closed
        return MORE
    return PAGE if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) else MORE


def has_room() -> bool:
    """Whether a line can be written to stderr without waiting for a reader that stands still."""
    return _stderr.has_room()


class _Lines(structlog.WriteLogger):
    """Lines on stderr. Those that cannot be written are lost: raising would abort the work that logs, which would never
    be resumed."""

    def __init__(self, *args: object) -> None:
        super().__init__(cast(TextIO, _stderr))

    def msg(self, message: str) -> None:
        """Write a line, if that is possible."""
        with contextlib.suppress(OSError):
            super().msg(message)
        if lost := _stderr.lost_before():
            structlog.get_logger().warning("log lines lost: nobody read them", count=lost)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class Sparse:
    """Warnings that repeat, each kind of them at most once in `every` seconds: an outage of the database refuses
    thousands of requests for one reason. Those left out are written at `debug`, and counted in the next one."""

    def __init__(self, event: str, *, every: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._event, self._every, self._clock = event, every, clock
        #: Of each kind: when it was last written, and how many have been left out since.
        self._written: dict[str, tuple[float, int]] = {}

    def warn(self, log: Any, kind: str, **fields: Any) -> None:
        """Write one of this kind, unless another one was written a moment ago."""
        now = self._clock()
        at, left_out = self._written.get(kind, (None, 0))
        if at is not None and now - at < self._every:
            self._written[kind] = at, left_out + 1
            log.debug(self._event, **fields)
            return
        self._written[kind] = now, 0
        log.warning(self._event, **fields, **({"left_out": left_out} if left_out else {}))


def check(settings: Settings) -> None:
    """Raise SettingsError if the log settings are invalid."""
    if settings.log_level not in LEVELS:
        raise SettingsError(f"HELIOGRAPH_LOG_LEVEL must be {', '.join(LEVELS)}, not {settings.log_level!r}")
    if settings.log_format not in ("json", "text"):
        raise SettingsError(f"HELIOGRAPH_LOG_FORMAT must be json or text, not {settings.log_format!r}")


def configure(settings: Settings) -> None:
    """Set up this process's logs, including those of libraries (from warnings on). Raises SettingsError."""
    check(settings)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        spans.in_log,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        clean,
    ]
    render: Any
    if settings.log_format == "json":
        render = structlog.processors.JSONRenderer(serializer=_json)
    else:
        shared.append(_without_controls)
        render = _Entry(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty() and not os.environ.get("NO_COLOR")))
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.log_level]),
        logger_factory=_Lines,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(_stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render]
        )
    )
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, LEVELS[settings.log_level]), force=True)
    # asyncpg logs a traceback whenever the pool cannot connect; the code that requested the connection logs one line.
    logging.getLogger("asyncpg").setLevel(logging.ERROR)
    # It warns of each upload that is malformed, which whoever sends it is told.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)


class _Entry:
    """Text in which only an entry's first line begins at the margin: a line break in the message of a library, in a
    supplier's word or in an exception cannot be followed by what looks like an entry of its own."""

    def __init__(self, render: Callable[[Any, str, Any], str]) -> None:
        self._render = render

    def __call__(self, logger: Any, method: str, entry: Any) -> str:
        return self._render(logger, method, entry).replace("\n", "\n    ")


def clean(logger: Any, method: str, entry: Any) -> Any:
    """The safety net: drops values whose names mark them as secret, and masks anything that looks like a key, a
    password or a phone number, however deeply nested. Of a struct only the type is written: any of its fields may be
    secret."""
    for name in list(entry):
        plain = str(name).lower().replace("-", "_")
        if plain in DROPPED:
            del entry[name]
        elif plain in NUMBERS:
            entry[name] = _DIGITS.sub(lambda found: masked(found[0]), str(entry[name]))
        else:
            entry[name] = _cleaned_value(entry[name], numbers=not plain.endswith("id"))
    return entry


def cleaned(text: str, *, numbers: bool = True) -> str:
    """`text` without API keys, bearer tokens, passwords in URLs, database rows and (`numbers`) phone numbers."""
    text = _ARGUMENT.sub(r"\1… ", _ROW.sub("", text))
    text = _PASSWORD.sub(r"\1:…@", _TOKEN.sub("…", _KEY.sub(r"hg_\1_…", text)))
    return _NUMBER.sub(lambda found: masked(found[0]), text) if numbers else text


def _without_controls(logger: Any, method: str, entry: Any) -> Any:
    """Text is read on terminals: a word of a receipt, or the text of an error, must not control them. What lies deeper
    is quoted anyway."""
    return {name: value.translate(HARMLESS) if isinstance(value, str) else value for name, value in entry.items()}


def _cleaned_value(value: Any, *, numbers: bool) -> Any:
    if isinstance(value, str):
        return cleaned(value, numbers=numbers)
    if isinstance(value, dict):
        return clean(None, "", dict(value))
    if isinstance(value, list | tuple | set | frozenset):
        return [_cleaned_value(one, numbers=numbers) for one in value]
    if isinstance(value, msgspec.Struct | bytes | bytearray):
        return f"<{type(value).__name__}>"
    return value


def _json(entry: object, **options: object) -> str:
    return msgspec.json.encode(entry, enc_hook=repr).decode()
