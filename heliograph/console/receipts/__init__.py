"""Receipts: what suppliers report beside what they were handed, what of it matches nothing, and words nobody knows."""
