"""Trace spans for OpenTelemetry: which requests are traced, and what their spans contain.

Off unless `HELIOGRAPH_TRACES_URL` is set; then `otlp.py`, which needs the extra `heliograph[traces]`, sends spans to a
collector from a thread of its own. An untraced request costs a comparison. The rule nobody may break: no number, no
text and no customer's name is in a span.

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

#: The role of a step: a server is called, a client calls, an internal step does neither.
Kind = Literal["server", "client", "internal"]
#: Attributes of a step: names with a dot are OpenTelemetry's own; others are ours, prefixed with `heliograph.`.
Attributes = Mapping[str, str | int]
NOTHING: Attributes = MappingProxyType({})
#: nginx's status for a request whose client was gone before it had sent everything.
CLOSED = 499
#: The header of W3C Trace Context.
HEADER = "traceparent"
#: In the id of a traced object, these bits have this value. Other ids have it by chance once in 65,536 times, which
#: costs a look-up. They are not the lowest bits: segments' references are made from those.
_BITS, _MARK = 0xFFFF << 40, 0x7ACE << 40
#: Number of traces known to the process: their log lines and next steps need no look-up.
_REMEMBERED = 10_000

_parent = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?").fullmatch


class Context(msgspec.Struct, frozen=True, gc=False):
    """The point at which a trace continues: its id, and the parent span."""

    trace: int
    span: int

    @property
    def header(self) -> str:
        """As `traceparent`, sampled."""
        return f"00-{self.trace:032x}-{self.span:016x}-01"


class Span(Protocol):
    """A step in progress."""

    context: Context

    def end(self, said: Attributes = NOTHING, *, name: str = "", failed: bool = False) -> None:
        """End the step. `said`: attributes known by now; `name`: a better one than at the beginning."""


class Exporter(Protocol):
    """Collects spans, and sends them when it can."""

    def begin(self, name: str, *, parent: Context | None, kind: Kind, at: int, said: Attributes) -> Span:
        """`at`: nanoseconds since 1970. Without a parent, a trace begins."""

    def close(self) -> None:
        """Send the remaining spans; waits a few seconds at most."""


class _State:
    """The configuration, and the traces that this process knows."""

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
        # Half a second of imports, paid only with tracing enabled.
        found = importlib.import_module("heliograph.base.process.otlp")
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"HELIOGRAPH_TRACES_URL is set, but {error.name} is not installed: pip install 'heliograph[traces]'"
        ) from None
    use(found.Otlp(settings.traces_url, part=part), ratio=settings.traces_ratio, most=settings.traces_per_second)


def use(exporter: Exporter | None, *, ratio: float = 1.0, most: int = 1_000) -> None:
    """Trace to `exporter` this share of requests that did not ask to be traced, and at most `most` requests a second;
    None: stop tracing."""
    _State.exporter, _State.ratio, _State.most = exporter, ratio, most
    _State.second = _State.begun = 0
    _State.known.clear()


def close() -> None:
    """Send the remaining spans. Blocks for a few seconds at most."""
    if _State.exporter is not None:
        _State.exporter.close()


def on() -> bool:
    """Whether tracing is enabled here."""
    return _State.exporter is not None


def incoming(header: bytes | None) -> Span | None:
    """The span of an incoming request, if it is traced: those whose `traceparent` requests it, and a share of the
    others, up to a limit per second. It continues the header's trace, if there is one that can be parsed."""
    if _State.exporter is None:
        return None
    parent, wanted = _read(header) if header is not None else (None, False)
    if not (_chosen() if wanted else chosen()):
        return None
    return _State.exporter.begin("request", parent=parent, kind="server", at=moment(), said=NOTHING)


def chosen() -> bool:
    """Whether to trace something for which no request asks: a share, up to a limit per second. False if tracing is
    disabled."""
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
    """Begin a trace: its first step."""
    assert _State.exporter is not None
    return _State.exporter.begin(name, parent=None, kind="internal", at=moment(), said=said)


def begin(name: str, parent: Context, said: Attributes, *, kind: Kind = "internal", at: int = 0) -> Span:
    """Begin a step of a known trace. `at`: its start, nanoseconds since 1970; 0: now."""
    assert _State.exporter is not None
    return _State.exporter.begin(name, parent=parent, kind=kind, at=at or moment(), said=said)


def moment() -> int:
    """The current time by the database's clock, nanoseconds since 1970: a trace may span several machines."""
    return clock.milliseconds() * 1_000_000


def _read(header: bytes) -> tuple[Context | None, bool]:
    """The context of a `traceparent`, and whether it is sampled. A malformed header counts as missing."""
    found = _parent(header[:200])
    if found is None or header[:2] == b"ff":
        return None, False
    trace, span = int(found[1], 16), int(found[2], 16)
    return (Context(trace, span), bool(int(found[3], 16) & 1)) if trace and span else (None, False)


# ── Ids marked as traced ──────────────────────────────────────────────────────────────────────────────────────────────


def marked(id: UUID) -> UUID:
    """A new id marked as traced, which code that sees it recognizes without a look-up."""
    return uuid_of((id.int & ~_BITS | _MARK).to_bytes(16, "big"))


def is_marked(id: UUID) -> bool:
    """Whether this id is (nearly certainly) traced."""
    return id.int & _BITS == _MARK


def like(other: UUID, id: UUID) -> UUID:
    """The new `id`, marked as traced if `other` is."""
    return marked(id) if _State.exporter is not None and is_marked(other) else id


# ── Traces known to this process ──────────────────────────────────────────────────────────────────────────────────────


def remember(message_id: UUID, context: Context) -> None:
    """Add the trace to log lines about this message from now on."""
    known = _State.known
    if len(known) >= _REMEMBERED:
        del known[next(iter(known))]
    known[str(message_id)] = context


def known(message_id: UUID) -> Context | None:
    """The context passed to `remember`."""
    return _State.known.get(str(message_id))


def in_log(logger: Any, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For structlog: adds the trace id to lines about a traced message."""
    if _State.exporter is not None and "trace_id" not in entry:
        context = _State.known.get(str(entry.get("message_id", "")))
        if context is not None:
            entry["trace_id"] = f"{context.trace:032x}"
    return entry
