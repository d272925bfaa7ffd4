"""People: their identity and credentials, the organizations they belong to, and what they may do there.

Sessions, passwords, second factors, roles and invitations. Nothing here knows about HTTP or pages.
"""
