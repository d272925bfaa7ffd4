"""Look-up suppliers, which say which network a number belongs to: their kinds, and how each is queried.

Each supplier is one module in `by_name/`. The rule nobody may break: what a supplier does not state clearly is unknown,
and no network is guessed from a name.
"""
