"""Which suppliers are avoided for a while, or asked more slowly: what a worker sees (`breaker`), and what all of them
know (`sharing`, the table `supplier_health`).

The rule nobody may break: nothing here writes for a message, only when something changed.
"""
