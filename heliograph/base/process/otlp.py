"""Sends spans to an OpenTelemetry collector: OTLP over HTTP, protobuf, in batches, from a thread of the SDK.

Needs the extra `heliograph[traces]`, so only `spans.configure` imports it. If the collector is away, only its spans are
lost.
"""

from __future__ import annotations

import logging
import os
import socket

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation import set_span_in_context

from heliograph import __version__
from heliograph.base.process.spans import NOTHING, Attributes, Context, Kind, moment

#: Maximum spans waiting to be sent (more are dropped), and the pause between two batches, milliseconds.
WAITING, EVERY = 8_192, 1_000
#: Time limit for a batch, seconds.
PATIENCE = 5
_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}


class Otlp:
    """Begins spans, and sends finished ones."""

    def __init__(self, url: str, *, part: str) -> None:
        """`url`: of the collector, without `/v1/traces`. `part`: the kind of process this is."""
        resource = Resource.create(
            {
                "service.namespace": "heliograph",
                "service.name": f"heliograph-{part}",
                "service.version": __version__,
                "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
            }
        )
        # `spans` has already decided what is traced.
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        sender = OTLPSpanExporter(endpoint=url.rstrip("/") + "/v1/traces", timeout=PATIENCE)
        self._provider.add_span_processor(
            BatchSpanProcessor(sender, max_queue_size=WAITING, schedule_delay_millis=EVERY, max_export_batch_size=512)
        )
        # One line per batch while a collector is away would flood the log.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._tracer = self._provider.get_tracer("heliograph", __version__)

    def begin(self, name: str, *, parent: Context | None, kind: Kind, at: int, said: Attributes) -> _Sent:
        """See `spans.Exporter`."""
        within = None
        if parent is not None:
            flags = TraceFlags(TraceFlags.SAMPLED)
            within = set_span_in_context(
                NonRecordingSpan(SpanContext(parent.trace, parent.span, is_remote=True, trace_flags=flags))
            )
        span = self._tracer.start_span(name, within, kind=_KINDS[kind], attributes=_named(said), start_time=at)
        assert isinstance(span, SdkSpan)
        return _Sent(span)

    def close(self) -> None:
        """See `spans.Exporter`."""
        self._provider.shutdown()


class _Sent:
    """See `spans.Span`."""

    __slots__ = ("_span", "context")

    def __init__(self, span: SdkSpan) -> None:
        self._span = span
        said = span.get_span_context()
        self.context = Context(said.trace_id, said.span_id)

    def end(self, said: Attributes = NOTHING, *, name: str = "", failed: bool = False) -> None:
        """See `spans.Span`."""
        if name:
            self._span.update_name(name)
        self._span.set_attributes(_named(said))
        if failed:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(moment())


def _named(said: Attributes) -> dict[str, str | int]:
    return {key if "." in key else f"heliograph.{key}": value for key, value in said.items()}
