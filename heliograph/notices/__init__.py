"""The bell: what needs somebody's attention, told by the code that knows it, in the transaction in which it happened.

    campaign, endpoint, import, sender, template, number ── recording ──► notices ── reading ──► the bell, its page
    quota, keys, wallets ── standing, every five minutes ──────┘

The rule nobody may break: one cause rings once (`recording`), and nobody is told what their role does not see
(`kinds`).
"""

from heliograph.notices.reading import DAYS, FORGET
from heliograph.notices.recording import Notice, record, record_many

__all__ = ["DAYS", "FORGET", "Notice", "record", "record_many"]
