"""WhatsApp: accounts of all organizations with their numbers and templates, and callbacks from Meta."""
