"""The operator's console, as a browser without scripts sees it."""
