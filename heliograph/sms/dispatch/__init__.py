"""From the queue to a supplier: routing, the handling of answers, and the suppliers themselves."""
