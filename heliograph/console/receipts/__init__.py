"""Receipts: suppliers' reports compared with what they were handed, unmatched receipts, and unknown codes."""
