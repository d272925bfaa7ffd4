"""What operators see of the whole installation: how it is now, what waits for them, all organizations, the backups."""
