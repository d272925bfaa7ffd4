"""Metrics for Prometheus: what a process counted, what its parts hold, and what the database says of the whole.

`exporting` serves them on a port of the process's own, `database` asks what no process knows alone.
"""
