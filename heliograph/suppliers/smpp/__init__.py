"""SMPP accounts: sessions, submissions, receipts. Knows no SQL and no tenant."""
