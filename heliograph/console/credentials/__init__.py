"""API keys and sender IDs: an organization's keys made, renamed and rotated, and both of all organizations searched."""
