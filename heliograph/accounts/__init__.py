"""Organizations, their API keys, quotas and limits."""
