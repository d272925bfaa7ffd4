"""Encryption of texts at rest, for all code that stores or shows what people wrote: a key for each organization that
enables it (`text_keys.py`)."""
