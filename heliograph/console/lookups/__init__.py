"""Look-up suppliers, which find the network of a number: their settings, queries and costs."""
