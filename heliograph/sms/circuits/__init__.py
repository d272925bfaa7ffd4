"""Circuit breakers: which suppliers are avoided or slowed down for a while, as seen by one worker (`breaker`) and as
shared by all (`sharing`, the table `supplier_health`).

The rule nobody may break: nothing here writes per message, only when something changed.
"""
