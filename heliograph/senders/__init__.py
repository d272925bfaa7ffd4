"""Suppliers' rules for senders and numbers: which senders they carry where, and the number format that they expect.

Owns the tables `sender_rules`, `sender_registrations`, `number_rules`, `sender_owners` and `sender_book`, and the
in-memory book that workers build from them (`book.py`). The rule nobody may break: no message queries the database for
any of it.
"""
