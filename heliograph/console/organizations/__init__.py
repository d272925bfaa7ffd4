"""Organizations: created, configured, suspended, given quota, and looked at as a whole; their campaigns stopped."""
