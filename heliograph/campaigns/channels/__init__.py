"""How campaigns go out: what is asked of a channel, SMS and WhatsApp, and the table of both."""
