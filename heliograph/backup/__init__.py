"""Backups: taken while everything runs, verified by bringing them up, restored into an empty place with all work held.

`store` is what a backup is on disk, `taking` makes one, `restoring` brings one up (also to verify it).
"""
