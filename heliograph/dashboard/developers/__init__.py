"""For developers: keys of the API."""
