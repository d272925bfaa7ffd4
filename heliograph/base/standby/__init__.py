"""Reading from a standby, once it is as fresh as the primary."""
