"""The operators' view of the whole installation: its state, what waits for them, all organizations, the backups."""
