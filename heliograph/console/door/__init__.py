"""The console's door: the setup link, signing in with a second factor, and the operator's own account."""
