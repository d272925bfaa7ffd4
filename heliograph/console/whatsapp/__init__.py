"""WhatsApp: accounts of all organizations with their numbers and templates, callbacks from Meta, and rates."""
