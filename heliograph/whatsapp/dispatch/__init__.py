"""From the queue to Meta: the numbers, what holds them up, and what an answer comes to."""
