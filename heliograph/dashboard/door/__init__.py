"""The door: signing in by password, passkey, link or invitation, and people's own accounts."""
