"""The engine: how the installation is now, what waits in its queue, who carries it, and whether all is well."""
