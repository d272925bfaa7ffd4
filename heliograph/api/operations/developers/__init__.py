"""For developers: the feed of events, and the log of their own requests."""

from heliograph.api.operations.developers import events, requests

__all__ = ["events", "requests"]
