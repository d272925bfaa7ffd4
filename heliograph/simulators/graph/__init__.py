"""A simulation of the parts of Meta's Graph API that WhatsApp uses."""
