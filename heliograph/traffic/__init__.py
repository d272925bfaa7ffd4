"""Traffic roll-ups: how many messages were sent where, in which hour, and how fast; the basis of charts and bills.

    accept, moves ── deltas, in the same commit ──► traffic_deltas ── folded every ten seconds ──► traffic ──► charts

Messages handed to suppliers, and their reports, are rolled up separately (`reconciliation.py`), for operators only.

A message counts in the hour in which it was accepted, under its current status. The rule nobody may break: deltas are
written in the commit that they describe, so that roll-ups, once folded, equal a count over messages.
"""

from heliograph.base.histogram import percentile
from heliograph.traffic.deltas import LOST, Change, record
from heliograph.traffic.folding import ANY, EVERY, TIMER, fold
from heliograph.traffic.reading import Failed, Point, Query, by_sender, delivered, ever, failures, read
from heliograph.traffic.reconciliation import LATE

__all__ = [
    "ANY",
    "EVERY",
    "LATE",
    "LOST",
    "TIMER",
    "Change",
    "Failed",
    "Point",
    "Query",
    "by_sender",
    "delivered",
    "ever",
    "failures",
    "fold",
    "percentile",
    "read",
    "record",
]
