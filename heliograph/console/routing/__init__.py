"""Routes: which suppliers carry what, what they get of it now, and what a change would move before it is made; beside
them what suppliers make of senders and numbers, and where senders are registered."""
