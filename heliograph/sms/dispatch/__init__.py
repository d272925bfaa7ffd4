"""From the queue to a supplier: who carries a message, what its answer comes to, and the suppliers themselves."""
