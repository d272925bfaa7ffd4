"""The audit log: who changed what, when, from where and why. `recording.py` writes it, `reading.py` lists and exports
it, `failures.py` aggregates failed authentications.

The rule nobody may break: an entry is written in the transaction that makes the change, holds no secret, no text and no
whole phone number, and is never changed: the application's role may add entries and read them, nothing else.
"""
