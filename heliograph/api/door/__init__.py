"""What surrounds every operation: authentication, rate limits, idempotency and parsing."""
