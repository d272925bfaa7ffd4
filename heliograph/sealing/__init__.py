"""Texts sealed at rest, for whoever stores or shows what somebody wrote: the key of each organization that wants it
(`text_keys.py`)."""
