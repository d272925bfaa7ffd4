"""Addresses that may be connected to, connections with a deadline, listening sockets."""
