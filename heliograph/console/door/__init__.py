"""The door of the console: the first link, signing in with a second factor, and what is the operator's alone."""
