"""WhatsApp: the templates that may be sent, and how the organization's numbers stand."""
