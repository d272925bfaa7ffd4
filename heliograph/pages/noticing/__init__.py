"""Notices in the reader's words: `lines` writes them, for pages and for a `mail`."""
