"""Suppliers with all actions on them, and the wizard that adds one."""
