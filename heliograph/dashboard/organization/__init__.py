"""The organization itself: its sender IDs, team, audit log, settings, limits, notices and exports."""
