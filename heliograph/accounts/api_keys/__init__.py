"""API keys: what they look like, what they allow, what is done with them, and whom a presented one belongs to."""
