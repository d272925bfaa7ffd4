"""Messages of all organizations: what happened to one, with text and number behind a reason."""
