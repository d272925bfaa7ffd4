"""The request log: programs' requests to the API and people's to the dashboard, with the responses.

    guard, pages ── note, count ──► Log ── once a second ──► requests, request_counts ──► reading

Refused requests and those that changed something have a row each; an accepted send is represented by its message's row,
and `overview/requests.py` merges the two into one list. The rule nobody may break: no request waits for this log, and
it contains no text that somebody wrote, no phone number and no secret.
"""

from heliograph.requests.reading import Filters, Group, Hour, LogEntry, RequestPage
from heliograph.requests.recording import DAYS, Entry, Log
from heliograph.requests.vocabulary import Unknown, Vocabulary

__all__ = [
    "DAYS",
    "Entry",
    "Filters",
    "Group",
    "Hour",
    "Log",
    "LogEntry",
    "RequestPage",
    "Unknown",
    "Vocabulary",
]
