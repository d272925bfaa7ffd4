"""For developers: API keys, webhook endpoints and their deliveries, the catcher, and the request log."""
