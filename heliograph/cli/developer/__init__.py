"""Commands for developers: they use the API over HTTP with a key, like any client, and never the database."""
