"""The door: how people come in, by password, link or invitation, and what is theirs alone."""
