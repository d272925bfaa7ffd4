"""For developers: keys of the API, webhook endpoints and what they were sent, the catcher, and the log of requests."""
