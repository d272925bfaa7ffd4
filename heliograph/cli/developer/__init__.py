"""Commands for developers: they use the API over HTTP with a key, as any client does, and never the database."""
