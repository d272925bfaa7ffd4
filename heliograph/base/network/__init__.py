"""Addresses that may be connected to, connections with a deadline, certificates, SMTP, listening sockets."""
