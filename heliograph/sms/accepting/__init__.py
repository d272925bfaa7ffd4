"""Accepting SMS: from a request, or a step of a campaign, to a committed message; withdrawal before dispatch."""
