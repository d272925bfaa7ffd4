"""Notices in the reader's words: `lines` says them, on pages and in a `mail`."""
