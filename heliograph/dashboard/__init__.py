"""The dashboard of an organization: one file a place, each with its routes' handlers. `table.py` is where to begin.

A screen holds no rule and no SQL: what it reads and writes are functions that the API or the command line calls too.
"""
