"""Observing a supplier, for operators: its masked traffic during a watch of some minutes (`pdus`), when its last
receipt arrived (`last_receipts`), the state of its sessions (`sessions`), how full its window was and how long its
answers took (`hours`), and what explains a dip in its charts (`history`)."""
