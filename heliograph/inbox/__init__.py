"""The inbox: conversations with people who wrote to an organization, on either channel, and their handling."""
