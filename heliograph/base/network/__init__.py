"""Addresses that may be spoken to, connections with a deadline, listening sockets."""
