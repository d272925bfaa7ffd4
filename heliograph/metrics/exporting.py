"""Serves metrics on a port of each process, in Prometheus's text format, with `prometheus-client`.

The server has threads of its own (`serving.py`), so a scrape never waits for the event loop, nor the loop for a scrape:
it reads what the loop has recorded. The rule nobody may break: nothing here can end the process; messages continue
without metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from heliograph.base.process import measures
from heliograph.base.process.measures import Gauge
from heliograph.metrics.serving import MetricsServer

log = structlog.get_logger()

#: How many ports are tried, beginning with the one in the settings: processes on one machine share a setting.
PORTS = 32
#: Seconds between two queries of the database, and between two measurements of the loop's lag.
DATABASE_EVERY, LAG_EVERY = 15.0, 0.25
#: Seconds for which the loop's longest delay is shown, and for which results from the database count as current.
LAG_WITHIN, DATABASE_WITHIN = 15.0, 3 * DATABASE_EVERY


class Exporter(Collector):
    """The metrics of one process."""

    def __init__(
        self,
        *,
        parts: Callable[[], Iterable[Gauge]] = lambda: (),
        database: Callable[[], Awaitable[Sequence[Gauge]]] | None = None,
    ) -> None:
        """`parts`: the current state of the process, read in the scraping thread. `database`: metrics from the
        database, queried on the event loop every 15 s."""
        self._parts = parts
        self._database = database
        self._said: Sequence[Gauge] = ()
        self._said_at = 0.0
        #: When the loop was late, and by how many seconds.
        self._late: deque[tuple[float, float]] = deque(maxlen=round(LAG_WITHIN / LAG_EVERY))
        #: When the next measurement is due; None: not running yet.
        self._due: float | None = None

    def collect(self) -> Iterator[Any]:
        """All families; called by the library in its own thread."""
        for counter in measures.COUNTERS:
            family = CounterMetricFamily(counter.name, counter.help, labels=counter.labels)
            for labels, count in list(counter.values.items()):
                family.add_metric(labels, count)
            yield family
        for histogram in measures.HISTOGRAMS:
            spread = HistogramMetricFamily(histogram.name, histogram.help, labels=histogram.labels)
            for labels, (counts, total) in list(histogram.values.items()):
                spread.add_metric(labels, _cumulative(histogram.bounds, list(counts)), total[0])
            yield spread
        gauges = [
            Gauge("heliograph_event_loop_lag_seconds", f"The loop's longest delay in {LAG_WITHIN:g} s", self._lag())
        ]
        with contextlib.suppress(RuntimeError):  # changed by the loop at this moment: the next scrape has it
            gauges += self._parts()
        # A hanging loop reports nothing new: old results would look current.
        if time.monotonic() - self._said_at < DATABASE_WITHIN:
            gauges += self._said
        found: dict[str, GaugeMetricFamily] = {}
        for one in gauges:
            if one.name not in found:
                found[one.name] = GaugeMetricFamily(one.name, one.help, labels=list(one.labels))
            found[one.name].add_metric(list(one.labels.values()), one.value)
        yield from found.values()

    async def run(self) -> None:
        """Measure the loop's lag and query the database, until cancelled."""
        loop = asyncio.get_running_loop()
        ask_at = loop.time()
        while True:
            due = self._due = time.monotonic() + LAG_EVERY
            await asyncio.sleep(LAG_EVERY)
            self._late.append((due, max(time.monotonic() - due, 0.0)))
            if self._database is not None and loop.time() >= ask_at:
                ask_at = loop.time() + DATABASE_EVERY
                try:
                    self._said = await self._database()
                except Exception as error:
                    # Results from before the outage would look current.
                    self._said = (measures.database_up(False),)
                    log.info("metrics not read from the database", error=type(error).__name__)
                self._said_at = time.monotonic()

    def _lag(self) -> float:
        """The longest delay of the last seconds, including that of a loop that is hanging right now."""
        now = time.monotonic()
        now_late = now - self._due if self._due is not None else 0.0
        return max([now_late, *(late for at, late in list(self._late) if now - at <= LAG_WITHIN + late)])


@contextlib.asynccontextmanager
async def exported(listen: str, exporter: Exporter) -> Any:
    """Serve metrics at `host:port`, or at one of the following ports if it is taken; "" serves nothing. Yields the
    port; None: none are served, which is logged if they should be."""
    if not listen:
        yield None
        return
    host, _, port = listen.rpartition(":")
    registry = CollectorRegistry()
    registry.register(exporter)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    try:
        server = _started(host.strip("[]"), int(port), registry)
    except OSError as error:
        log.error("metrics not served", listen=listen, reason=error.strerror or str(error))
        yield None
        return
    bound = int(server.server_port)
    log.info("metrics served", url=f"http://{host}:{bound}/metrics")
    running = asyncio.create_task(exporter.run())
    try:
        yield bound
    finally:
        running.cancel()
        await asyncio.to_thread(server.close)


def _started(host: str, port: int, registry: CollectorRegistry) -> MetricsServer:
    """The running server. Raises OSError if no port is free."""
    last: OSError | None = None
    for candidate in range(port, port + PORTS) if port else (0,):
        try:
            return MetricsServer(host, candidate, registry)
        except OSError as error:
            last = error
    assert last is not None
    raise last


def _cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(total)))
    return buckets
