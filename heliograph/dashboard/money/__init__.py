"""The organization's usage and what is left: the message quota, and the WhatsApp wallet."""
