"""What a process counts about itself, for its metrics: counters and histograms, in memory.

They are plain dictionaries that only this process's event loop changes, so counting costs a tenth of a microsecond and
nothing needs to be imported for it; `heliograph.metrics` exposes them. On the path of a message they are changed once
per batch, never once per message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from heliograph.base.histogram import LENGTH, bucket

Labels = tuple[str, ...]


class Counter:
    """A number that only grows, for each combination of labels. The name follows Prometheus's conventions, without
    `_total`."""

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.name, self.help, self.labels = name, help, tuple(labels)
        # Prometheus does not treat a missing series as zero: the first outage would not count as an increase.
        self.values: dict[Labels, float] = {} if labels else {(): 0}

    def add(self, *labels: str, by: float = 1) -> None:
        """Count `by` more. Labels in their declared order."""
        self.values[labels] = self.values.get(labels, 0) + by

    def expect(self, labels: Iterable[Labels]) -> None:
        """Show zero for these until they are counted, so that the first count is an increase."""
        for one in labels:
            self.values.setdefault(one, 0)


class Histogram:
    """Observations counted by upper bound, and their sum, for each combination of labels."""

    def __init__(self, name: str, help: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self.name, self.help, self.labels, self.bounds = name, help, tuple(labels), tuple(bounds)
        #: Counts by bound, the last one for values above all bounds; and the sum.
        self.values: dict[Labels, tuple[list[int], list[float]]] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Record one observation. Labels in their declared order."""
        try:
            counts, total = self.values[labels]
        except KeyError:
            counts, total = self.values.setdefault(labels, ([0] * (len(self.bounds) + 1), [0.0]))
        counts[bisect_left(self.bounds, value)] += 1
        total[0] += value


_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

REQUESTS = Counter(
    "heliograph_requests",
    "Requests with a valid key, dashboard requests, and requests that failed here",
    ("operation", "status", "code"),
)
BATCH_ITEMS = Histogram("heliograph_batch_items", "Items that were committed together", ("batch",), _SIZES)
BATCH_SECONDS = Histogram("heliograph_batch_seconds", "Duration of a batch, its commit included", ("batch",), _SECONDS)
BATCH_FAILURES = Counter("heliograph_batch_failures", "Batches that failed, and were halved or given up", ("batch",))
CLAIM_SECONDS = Histogram("heliograph_claim_seconds", "Duration of a claim of queued work", ("kind",), _SECONDS)
CLAIMED = Counter("heliograph_claimed", "Rows claimed from the queue", ("kind",))
ATTEMPTS = Counter("heliograph_attempts", "Attempts to hand a message over, by outcome", ("channel", "outcome"))
#: By the codes that customers see. Counted in the transaction: a repeated transaction counts again.
LOST = Counter("heliograph_messages_failed", "Live messages that failed, by failure code", ("channel", "code"))
REPORTS = Counter("heliograph_reports", "Receipts and statuses recorded", ("channel",))
#: By how they found their message: `matched` on arrival, `unmatched` on arrival, later `late`, or in the end
#: `orphaned`. Counted in the transaction: a repeated transaction counts again.
RECEIPTS = Counter("heliograph_receipts", "SMS receipts, by how they found their message", ("result",))
THROTTLES = Counter("heliograph_supplier_throttles", "Number of times that a supplier said to slow down", ("supplier",))
CAMPAIGN_RECIPIENTS = Counter(
    "heliograph_campaign_recipients", "Recipients that campaigns have passed, by result", ("channel", "result")
)
WEBHOOK_ATTEMPTS = Counter("heliograph_webhook_attempts", "Webhook attempts, by result", ("result",))
DATABASE_AWAY = Counter("heliograph_database_outages", "Number of times that the database stopped answering")
CONNECTIONS = Counter("heliograph_database_connections_opened", "Connections of the pool that were opened")
CONNECTION_FAILURES = Counter(
    "heliograph_database_connection_failures", "Connections of the pool that could not be opened"
)
STANDBY_PASSED_OVER = Counter(
    "heliograph_standby_passed_over", "Reads for the standby that went to the primary, by reason", ("reason",)
)
FAILURES = Counter("heliograph_step_failures", "Failed steps of loops and timers, which are retried", ("step",))

#: Messages by the maximum time it took to store or refuse them, in buckets of `base.histogram`.
ACCEPTING = [0] * LENGTH


def accepted(seconds: float, count: int) -> None:
    """Record that `count` messages took at most `seconds`."""
    ACCEPTING[bucket(seconds)] += count


COUNTERS = (
    REQUESTS,
    BATCH_FAILURES,
    CLAIMED,
    ATTEMPTS,
    LOST,
    REPORTS,
    RECEIPTS,
    THROTTLES,
    CAMPAIGN_RECIPIENTS,
    WEBHOOK_ATTEMPTS,
    DATABASE_AWAY,
    CONNECTIONS,
    CONNECTION_FAILURES,
    STANDBY_PASSED_OVER,
    FAILURES,
)
HISTOGRAMS = (BATCH_ITEMS, BATCH_SECONDS, CLAIM_SECONDS)


class Gauge:
    """One current value, for a scrape."""

    __slots__ = ("help", "labels", "name", "value")

    def __init__(self, name: str, help: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        self.name, self.help, self.value, self.labels = name, help, value, dict(labels or {})


def database_up(is_up: bool) -> Gauge:
    """Whether the database answers, as every process sees it."""
    return Gauge("heliograph_database_up", "Whether the database answers", int(is_up))
