"""Messages of all organizations: what happened to each; text and number are shown only for a reason."""
