"""Sending a single message by hand: an SMS, a WhatsApp template, or a reply, with a preview next to the form."""
