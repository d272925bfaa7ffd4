"""Look-up suppliers, which say which network a number belongs to: their kinds, and how each is queried.

Each supplier is one module in `by_name/`. The rule nobody may break: a network that a supplier does not state clearly
is unknown; none is guessed from a name.
"""
