"""The inbox: which people wrote to an organization, by either channel, and whether somebody has seen to it."""
