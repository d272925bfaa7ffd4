"""What the forms for API keys of both apps offer: profiles, and how long a rotated key goes on working."""

from __future__ import annotations

from heliograph.pages.requests import Request

#: Profiles as they are offered: the least that sends comes first.
OFFERED = ("sms_only", "sms", "whatsapp", "read_only", "full_access")
#: Hours that a rotated key may go on working.
OVERLAPS = (1, 24, 168, 720)


def overlaps(request: Request) -> list[tuple[str, str]]:
    """OVERLAPS as a form has them: (value, in the reader's language)."""
    count = request.speech.count
    return [
        (
            str(hours),
            count("for %(num)s more hour", "for %(num)s more hours", hours)
            if hours <= 24
            else count("for %(num)s more day", "for %(num)s more days", hours // 24),
        )
        for hours in OVERLAPS
    ]
