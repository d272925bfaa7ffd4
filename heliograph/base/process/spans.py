"""Spans of traces, for OpenTelemetry: which requests are traced, and what is told of them.

Off unless `HELIOGRAPH_TRACES_URL` is set; then `otlp.py`, which needs the extra `heliograph[traces]`, sends spans to a
collector from a thread of its own. What is not traced costs a comparison. The rule nobody may break: no number, no text
and no name of a customer is in a span.

W3C Trace Context: https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import importlib
import random
import re
import time
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, Literal, Protocol
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.base.ids import uuid_of
from heliograph.base.process.settings import Settings, SettingsError

#: What asks of whom: a server is asked, a client asks, an internal step does neither.
Kind = Literal["server", "client", "internal"]
#: What is said of a step: by OpenTelemetry's own names where they have a dot, else by ours, below `heliograph.`.
Attributes = Mapping[str, str | int]
NOTHING: Attributes = MappingProxyType({})
#: The status, as nginx has it, of a request whose client was gone before it had sent it.
CLOSED = 499
#: The header of W3C Trace Context.
HEADER = "traceparent"
#: Of an id that is traced, these bits have this value. Others have it by chance once in 65,536 times, which costs a
#: look-up. They are not the lowest ones: of those segments' references are made.
_BITS, _MARK = 0xFFFF << 40, 0x7ACE << 40
#: Traces whose log lines and next steps need no look-up.
_REMEMBERED = 10_000

_parent = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?").fullmatch


class Context(msgspec.Struct, frozen=True, gc=False):
    """Where a trace continues: its id, and the span that caused what follows."""

    trace: int
    span: int

    @property
    def header(self) -> str:
        """As `traceparent`, sampled."""
        return f"00-{self.trace:032x}-{self.span:016x}-01"


class Span(Protocol):
    """A step that has begun."""

    context: Context

    def end(self, said: Attributes = NOTHING, *, name: str = "", failed: bool = False) -> None:
        """It is over. `said`: what is known by now; `name`: a better one than it began with."""


class Exporter(Protocol):
    """Takes spans, and sends them when it can."""

    def begin(self, name: str, *, parent: Context | None, kind: Kind, at: int, said: Attributes) -> Span:
        """`at`: nanoseconds since 1970. Without a parent a trace begins."""

    def close(self) -> None:
        """Send what is left; waits at most a few seconds."""


class _State:
    """What `configure` found, and what this process knows of traces."""

    exporter: Exporter | None = None
    ratio = 0.0
    most = 0
    second = 0
    begun = 0
    known: dict[str, Context] = {}  # noqa: RUF012 (one for the process, like the rest)


def configure(settings: Settings, *, part: str) -> None:
    """Begin to trace if the settings say so. `part`: `api` or `worker`. Raises SettingsError."""
    if not 0 <= settings.traces_ratio <= 1:
        raise SettingsError("HELIOGRAPH_TRACES_RATIO must be between 0 and 1")
    if settings.traces_per_second < 0:
        raise SettingsError("HELIOGRAPH_TRACES_PER_SECOND must not be negative")
    if not settings.traces_url:
        return
    if not re.match(r"https?://[^/\s]+", settings.traces_url):
        raise SettingsError("HELIOGRAPH_TRACES_URL must be an http:// or https:// URL, such as http://127.0.0.1:4318")
    try:
        # Half a second of imports, which nobody pays who does not trace.
        found = importlib.import_module("heliograph.base.process.otlp")
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"HELIOGRAPH_TRACES_URL is set, but {error.name} is not installed: pip install 'heliograph[traces]'"
        ) from None
    use(found.Otlp(settings.traces_url, part=part), ratio=settings.traces_ratio, most=settings.traces_per_second)


def use(exporter: Exporter | None, *, ratio: float = 1.0, most: int = 1_000) -> None:
    """Trace to `exporter` this share of what nobody asked to be traced, and at most so many requests a second; None:
    no longer."""
    _State.exporter, _State.ratio, _State.most = exporter, ratio, most
    _State.second = _State.begun = 0
    _State.known.clear()


def close() -> None:
    """Send what is left. Blocks for a few seconds at most."""
    if _State.exporter is not None:
        _State.exporter.close()


def on() -> bool:
    """Whether anything is traced here."""
    return _State.exporter is not None


def incoming(header: bytes | None) -> Span | None:
    """The span of a request that came in, if it is traced: those whose `traceparent` says so, and a share of the
    others, at most so many a second. It continues the trace of the header, if there is one that can be read."""
    if _State.exporter is None:
        return None
    parent, wanted = _read(header) if header is not None else (None, False)
    if not (_chosen() if wanted else chosen()):
        return None
    return _State.exporter.begin("request", parent=parent, kind="server", at=moment(), said=NOTHING)


def chosen() -> bool:
    """Whether to trace what nobody asked to be traced, and what no request brings: a share, at most so many a second.
    False, if nothing is traced here."""
    return _State.exporter is not None and random.random() < _State.ratio and _chosen()


def _chosen() -> bool:
    second = int(time.monotonic())
    if second != _State.second:
        _State.second, _State.begun = second, 0
    if _State.begun >= _State.most:
        return False
    _State.begun += 1
    return True


def root(name: str, said: Attributes) -> Span:
    """The first step of a trace that begins here."""
    assert _State.exporter is not None
    return _State.exporter.begin(name, parent=None, kind="internal", at=moment(), said=said)


def begin(name: str, parent: Context, said: Attributes, *, kind: Kind = "internal", at: int = 0) -> Span:
    """A step of a trace that is known here. `at`: when it began, nanoseconds since 1970; 0: now."""
    assert _State.exporter is not None
    return _State.exporter.begin(name, parent=parent, kind=kind, at=at or moment(), said=said)


def moment() -> int:
    """Now by the database's clock, nanoseconds since 1970: steps of one trace happen on several machines."""
    return clock.milliseconds() * 1_000_000


def _read(header: bytes) -> tuple[Context | None, bool]:
    """The context of a `traceparent`, and whether it is sampled. What cannot be read is as if it were not there."""
    found = _parent(header[:200])
    if found is None or header[:2] == b"ff":
        return None, False
    trace, span = int(found[1], 16), int(found[2], 16)
    return (Context(trace, span), bool(int(found[3], 16) & 1)) if trace and span else (None, False)


# ── Ids that say that they are traced ─────────────────────────────────────────────────────────────────────────────────


def marked(id: UUID) -> UUID:
    """A new id as one that is traced, so that whoever meets it knows without a look-up."""
    return uuid_of((id.int & ~_BITS | _MARK).to_bytes(16, "big"))


def is_marked(id: UUID) -> bool:
    """Whether this id is (nearly certainly) traced."""
    return id.int & _BITS == _MARK


def like(other: UUID, id: UUID) -> UUID:
    """The new `id` as one that belongs to `other`: traced if that is."""
    return marked(id) if _State.exporter is not None and is_marked(other) else id


# ── What this process knows ───────────────────────────────────────────────────────────────────────────────────────────


def remember(message_id: UUID, context: Context) -> None:
    """Log lines about this message carry its trace from now on."""
    known = _State.known
    if len(known) >= _REMEMBERED:
        del known[next(iter(known))]
    known[str(message_id)] = context


def known(message_id: UUID) -> Context | None:
    """What `remember` was told."""
    return _State.known.get(str(message_id))


def in_log(logger: Any, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For structlog: a line about a message that is traced has the id of its trace."""
    if _State.exporter is not None and "trace_id" not in entry:
        context = _State.known.get(str(entry.get("message_id", "")))
        if context is not None:
            entry["trace_id"] = f"{context.trace:032x}"
    return entry
