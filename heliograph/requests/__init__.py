"""The log of requests: what programs asked of the API, and people of the dashboard, and what they were told.

    guard, pages ── note, count ──► Log ── once a second ──► requests, request_counts ──► reading

Refused requests and those that changed something have a row each; of an accepted send the message's row tells, and
`overview/requests.py` puts the two into one list. The rule nobody may break: nobody waits for this, and nothing that
somebody wrote, no phone number and no secret is kept in it.
"""

from heliograph.requests.reading import Asked, Filters, Found, Group, Hour
from heliograph.requests.recording import DAYS, Entry, Log

__all__ = ["DAYS", "Asked", "Entry", "Filters", "Found", "Group", "Hour", "Log"]
