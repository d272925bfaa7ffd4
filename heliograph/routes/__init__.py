"""SMS routing: which suppliers may carry a message, in which order, and why.

Owns the tables `routes` and `route_suppliers`. If no route matches, suppliers' own prefixes, priorities and weights
decide. The rule nobody may break: the result of a look-up depends on the message and the tables alone, so that it can
be explained, and a change can be tried out in advance.
"""
