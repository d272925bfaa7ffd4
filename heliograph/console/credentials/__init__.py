"""API keys and sender IDs: an organization's are created, changed, suspended and revoked; those of all, searched."""
