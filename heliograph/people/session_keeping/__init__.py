"""What sessions of both realms have in common: their rows, and a cache of those in use."""
