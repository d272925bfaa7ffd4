"""Approvals: what organizations ask for and operators decide."""
