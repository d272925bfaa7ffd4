"""People: who they are, what proves it, which organizations they belong to and what they may do there.

Sessions, passwords, second factors, roles and invitations. Nothing here knows of HTTP or pages.
"""
