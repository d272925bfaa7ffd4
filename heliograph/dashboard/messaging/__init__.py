"""Messaging: home, and the messages of both channels, each with what happened to it and why."""
