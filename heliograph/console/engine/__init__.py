"""The engine: the installation's current state, its queue and workers, and its health checks."""
