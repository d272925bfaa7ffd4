"""WhatsApp: the organization's templates, and the status of its numbers."""
