"""SMPP 3.4 on the wire: PDUs to bytes and back, and what a command_status means."""
