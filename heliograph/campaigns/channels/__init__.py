"""How campaigns are sent: the interface of a channel, SMS and WhatsApp, and the table of both."""
