"""Suppliers by name, each from its public documentation: how it is asked, what it answers, what it tells later."""
