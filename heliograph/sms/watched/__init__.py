"""Observing a supplier, for operators: its traffic while they watch, masked, for minutes (`pdus`), when its last
receipt arrived (`last_receipts`), the state of its sessions (`sessions`), how full its window was and how long its
answers took (`hours`)."""
