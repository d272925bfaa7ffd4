"""Reading from a standby, of what is as fresh there as on the primary."""
