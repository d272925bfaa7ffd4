"""Meta's callbacks, stored encrypted and processed in order: statuses of our messages, and messages from users."""
