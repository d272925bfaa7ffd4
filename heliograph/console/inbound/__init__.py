"""Messages from handsets, of all organizations: what is nobody's, what is said, and who floods."""
