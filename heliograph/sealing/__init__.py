"""Encryption of texts at rest, for all code that stores or shows what somebody wrote: a key per organization that
enables it (`text_keys.py`)."""
