"""Routes: which suppliers carry what, their current shares, and what a change would shift before it is made; also
suppliers' rules for senders and numbers, and where senders are registered."""
