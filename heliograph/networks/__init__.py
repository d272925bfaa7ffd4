"""Which mobile network a number belongs to, as far as is known.

    look-ups ── asked, by number, and answered ──┐
    receipts, look-ups ── learned, by number, for 90 days ──┐
    numbering plan ── prefixes, with MCC-MNC ───────────────┴──► Directory ── a number's network, in memory

The rule nobody may break: what was learned about a number precedes its range, since ported numbers keep their prefix.
"""
