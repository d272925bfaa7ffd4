"""Suppliers: the interface that dispatch uses, and a folder for each kind."""
