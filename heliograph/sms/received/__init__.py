"""Messages from handsets: stored, reassembled, assigned to an organization, and answered."""
