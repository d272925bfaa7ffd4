"""Routes of SMS: which suppliers may carry a message, in which order, and why.

Owns the tables `routes` and `route_suppliers`. Where no route fits, suppliers' own prefixes, priorities and weights
decide. The rule nobody may break: what is looked up for a message follows from the message and the tables alone, so
that it can be explained, and tried out before a change.
"""
