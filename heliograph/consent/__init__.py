"""Consent: who may be written to. Numbers that opted out, by whichever channel, and the words for it; whom campaigns
skipped, for that or another reason.
"""
