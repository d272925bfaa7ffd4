"""Processing of stored callbacks: taking, routing and applying their items, and retrying dead letters."""
