"""Commands about one organization and what belongs to it: keys, senders, quota, defaults, members, notes; and settings
of the whole installation."""
