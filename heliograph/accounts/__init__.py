"""Organizations, their API keys and what they may still send."""
