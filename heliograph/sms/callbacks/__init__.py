"""What suppliers over HTTP post to this service: receipts, and messages from handsets. Stored first, then read."""
