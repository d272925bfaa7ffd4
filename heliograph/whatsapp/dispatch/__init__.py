"""From the queue to Meta: the numbers, what holds them up, and the handling of answers."""
