"""API keys: what they look like, what they allow, what is done with them, and whose a shown one is."""
