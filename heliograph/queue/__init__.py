"""Queued work: rows under leases, claimed fairly and in order, run by loops and timers; and the workers that run it."""
