"""Suppliers of look-ups, which say to which network a number belongs: what one is, who there are, and how one is asked.

A supplier is one file of `by_name/`. The rule nobody may break: what a supplier does not say clearly is not known, and
no network is guessed from a name.
"""
