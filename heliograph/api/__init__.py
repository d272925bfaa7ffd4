"""The HTTP API: the route table, and the rooms around it. `routes.py` is where to begin."""
