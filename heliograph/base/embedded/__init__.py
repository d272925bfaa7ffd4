"""The embedded PostgreSQL: installation, files, start, supervision and stop."""
