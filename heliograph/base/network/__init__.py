"""Addresses that may be connected to, connections with a deadline, standstills, certificates, SMTP, sockets."""
