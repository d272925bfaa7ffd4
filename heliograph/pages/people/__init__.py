"""People on the pages of both apps: what their doors share, one's own account, factors and passkeys, and who belongs to
an organization."""
