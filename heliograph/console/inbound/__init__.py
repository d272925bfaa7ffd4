"""Messages from handsets, for all organizations: unassigned ones, keywords, and floods."""
