"""API keys and sender IDs: an organization's made, changed, stopped and ended, and those of all searched."""
