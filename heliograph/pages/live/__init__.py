"""Self-refreshing regions of pages: rendered once for all who see the same, as often as the process can afford."""
