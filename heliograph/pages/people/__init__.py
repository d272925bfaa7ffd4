"""People on the pages of both apps: signing in, one's own account, second factors and passkeys, and members of
organizations."""
