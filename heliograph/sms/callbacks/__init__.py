"""Callbacks from HTTP suppliers: receipts, and messages from handsets. Stored first, then processed."""
