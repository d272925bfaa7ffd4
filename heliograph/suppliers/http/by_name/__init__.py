"""Suppliers by name, each from its public documentation: its requests, answers and callbacks."""
