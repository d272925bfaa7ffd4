"""What Meta tells: stored sealed, processed in order: statuses of our messages, and what users write."""
