"""Suppliers' reports about messages: receipts, including those without an id, and advice about faulty ones."""
