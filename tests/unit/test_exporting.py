"""Scrapes of a process that hangs or whose database is unavailable; and an exporter that cannot listen."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Sequence

from structlog.testing import capture_logs

from heliograph.base.process.measures import Gauge
from heliograph.metrics import exporting
from heliograph.metrics.exporting import Exporter
from tests.processes import until


def shown(exporter: Exporter) -> dict[str, float]:
    """The gauges of a scrape."""
    return {family.name: family.samples[0].value for family in exporter.collect() if family.type == "gauge"}


async def test_a_loop_that_hangs_is_seen_while_it_does() -> None:
    async def read() -> Sequence[Gauge]:
        return [Gauge("heliograph_workers", "Workers", 1)]

    exporter = Exporter(database=read)
    running = asyncio.create_task(exporter.run())
    try:
        await until(lambda: "heliograph_workers" in shown(exporter))
        time.sleep(1.0)
        assert shown(exporter)["heliograph_event_loop_lag_seconds"] > 0.5
        # The first one to read takes it from nobody.
        assert shown(exporter)["heliograph_event_loop_lag_seconds"] > 0.5
        await asyncio.sleep(2 * exporting.LAG_EVERY)
        assert shown(exporter)["heliograph_event_loop_lag_seconds"] > 0.5
        # Values from long ago are not shown as current.
        exporter._said_at -= exporting.DATABASE_WITHIN
        assert "heliograph_workers" not in shown(exporter)
    finally:
        running.cancel()


async def test_a_database_that_is_away_is_no_gap() -> None:
    async def read() -> Sequence[Gauge]:
        raise ConnectionRefusedError

    exporter = Exporter(database=read)
    running = asyncio.create_task(exporter.run())
    try:
        await until(lambda: shown(exporter).get("heliograph_database_up") == 0)
    finally:
        running.cancel()


async def test_metrics_that_cannot_be_served_are_told_and_end_nothing() -> None:
    with capture_logs() as logged:
        # The second cannot be resolved either, and no name server is asked.
        for listen in ("192.0.2.1:9464", "[fe80::1%nowhere]:9464"):
            async with exporting.exported(listen, Exporter()) as port:
                assert port is None
    assert [(one["event"], one["listen"], one["log_level"]) for one in logged] == [
        ("metrics not served", "192.0.2.1:9464", "error"),
        ("metrics not served", "[fe80::1%nowhere]:9464", "error"),
    ]
    assert logged[0]["reason"] == os.strerror(errno.EADDRNOTAVAIL)
