"""Consent: who may be written to. Numbers that opted out, by whatever channel they said so, and the words for it."""
