"""The bell: what needs somebody's attention, recorded by the code that detects it, in the transaction where it happens.

    campaign, endpoint, import, sender, template, number ── recording ──► notices ── reading ──► the bell, its page
    quota, keys, wallets ── conditions, every five minutes ────┘

The rule nobody may break: one cause rings once (`recording`), and nobody is notified of what their role may not see
(`kinds`).
"""

from heliograph.notices.reading import DAYS, FORGET
from heliograph.notices.recording import IS_RECENT, QUIET, Notice, record, record_many, withdraw

__all__ = ["DAYS", "FORGET", "IS_RECENT", "QUIET", "Notice", "record", "record_many", "withdraw"]
