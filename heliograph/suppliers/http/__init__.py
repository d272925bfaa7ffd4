"""Suppliers that are reached over HTTP: one file each in `by_name/`, and `generic.py` for those that need only
configuration.

Begin with `kind.py`: it defines what a supplier's file must provide; `reading.py` reads callbacks by the places of
their fields, `rulings.py` turns answers into outcomes.
"""
