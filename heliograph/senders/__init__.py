"""What suppliers make of senders and numbers: which senders they carry where, and how they want numbers written.

Owns the tables `sender_rules`, `sender_registrations`, `number_rules`, `sender_owners` and `sender_book`, and the book
that workers hold of them (`book.py`). The rule nobody may break: no message asks the database for any of it.
"""
