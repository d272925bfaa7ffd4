"""Recording: events, their deliveries to endpoints, and the results: everything that is written about webhooks."""
