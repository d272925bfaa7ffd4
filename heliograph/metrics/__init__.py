"""Metrics for Prometheus: a process's counters, the state of its parts, and the state of the whole from the database.

`exporting` serves them on a port of each process (`serving` is its server), `database` queries what no process knows
by itself.
"""
