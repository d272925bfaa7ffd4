"""Organizations: created, suspended, given quota, and looked at as a whole."""
