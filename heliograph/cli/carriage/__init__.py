"""Commands that follow a message: sending, looking up, queueing, suppliers, inbound."""
