"""Suppliers over HTTP as their documentation describes them, to test against: one server, a profile each.

Nothing here is shared with `suppliers/http/`: what both would misread the same way no test would find.
"""
