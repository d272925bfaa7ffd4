"""HTTP suppliers as their documentation describes them, to test against: one server, and one profile for each.

Nothing here is shared with `suppliers/http/`: otherwise no test could find a misreading common to both.
"""
