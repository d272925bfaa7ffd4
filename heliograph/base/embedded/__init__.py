"""The embedded PostgreSQL: installation, files, start, supervision and stop; upgrades, copies and archived WAL."""
