"""Carriage: suppliers, each with all that can be done about it, and what is asked of a new one."""
