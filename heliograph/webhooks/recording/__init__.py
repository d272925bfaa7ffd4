"""What happened becomes an event, finds its endpoints, and gets its results: all that is written about webhooks."""
