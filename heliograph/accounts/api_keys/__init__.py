"""API keys: their format, scopes, lifecycle, and authentication."""
