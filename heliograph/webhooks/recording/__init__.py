"""Recording of events, their deliveries to endpoints, and the results: everything that is stored about webhooks."""
