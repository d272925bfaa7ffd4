"""Commands that follow a message: looking up, queueing and holding, suppliers, inbound."""
