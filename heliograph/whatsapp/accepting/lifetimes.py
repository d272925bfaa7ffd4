"""Lifetimes of messages: the time from when a message is due until it has expired without news from Meta."""

from __future__ import annotations

from datetime import timedelta

#: How long Meta tries to deliver messages without a lifetime of their own, by category; others have LIFETIME.
LIFETIMES = {"authentication": timedelta(minutes=10)}
LIFETIME = timedelta(days=30)
#: How much longer a status may take. After that, Meta has dropped the message, which it does silently.
BUFFERS = {"authentication": timedelta(minutes=15)}
BUFFER = timedelta(hours=24)


def lifetime(category: str, ttl_seconds: int | None) -> timedelta:
    """Time from when a message is due until it has expired without news from Meta. `ttl_seconds`: its template's own
    lifetime, if any."""
    own = LIFETIMES.get(category, LIFETIME) if ttl_seconds is None else timedelta(seconds=ttl_seconds)
    return own + BUFFERS.get(category, BUFFER)
