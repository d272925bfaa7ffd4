"""Meta's Cloud API for WhatsApp: bodies, errors, pace, callbacks, and the connector. Knows no SQL and no tenant."""
