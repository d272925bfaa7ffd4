"""Approvals: requests of organizations, decided by operators."""
