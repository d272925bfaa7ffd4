"""Reading from a standby once it has caught up with the primary."""
