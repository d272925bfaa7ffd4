"""The HTTP API: the route table and the packages around it. Start with `routes.py`."""
