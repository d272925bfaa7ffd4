"""HTTP suppliers as their documentation describes them, to test against: one server, one profile each.

Nothing here is shared with `suppliers/http/`: no test could find what both misread in the same way.
"""
