"""Backups: taken while everything runs, verified by starting them, restored into an empty place with all work held.

`store` defines a backup on disk, `taking` creates one, `restoring` starts one (also to verify it).
"""
