"""What operators do with suppliers, from a shell and in the console: typed options, changes with their differences,
trials, and what becomes of traffic meanwhile."""
