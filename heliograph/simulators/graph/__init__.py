"""A stand-in for Meta's Graph API, as far as WhatsApp needs it."""
