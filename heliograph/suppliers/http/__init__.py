"""Suppliers that are reached over HTTP: one file each in `by_name/`, `generic.py` by configuration alone.

`kind.py` is where to begin: it says what a supplier's file has to say; `reading.py` reads callbacks by where things
stand in them, `rulings.py` has what answers come to.
"""
