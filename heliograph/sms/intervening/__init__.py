"""Operators' interventions on a single message of any organization: give it up, send it through another supplier, or
decide how it ended.

The rule nobody may break: each needs a reason, which the organization can read in its audit log.
"""
