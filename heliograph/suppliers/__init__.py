"""Who carries messages: the seam that dispatch speaks to, and one room a kind of supplier."""
