"""Choices in both apps' forms for API keys: profiles, and how long a rotated key keeps working."""

from __future__ import annotations

from heliograph.pages.requests import Request

#: Profiles in the order offered: the most limited one that sends comes first.
OFFERED = ("sms_only", "sms", "whatsapp", "read_only", "full_access")
#: Choices of hours for which a rotated key keeps working.
OVERLAPS = (1, 24, 168, 720)


def overlaps(request: Request) -> list[tuple[str, str]]:
    """OVERLAPS for a form: (value, label in the reader's language)."""
    count = request.locale.count
    return [
        (
            str(hours),
            count("for %(num)s more hour", "for %(num)s more hours", hours)
            if hours <= 24
            else count("for %(num)s more day", "for %(num)s more days", hours // 24),
        )
        for hours in OVERLAPS
    ]
