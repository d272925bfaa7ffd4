"""Routes: which suppliers carry what, what they get of it now, and what a change would move before it is made; beside
them the look-ups that routes by network go by, and where senders are registered."""
