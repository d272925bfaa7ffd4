"""A simulation of Meta's Graph API, as far as WhatsApp needs it."""
