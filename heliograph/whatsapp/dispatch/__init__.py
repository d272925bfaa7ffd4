"""From the queue to Meta: the numbers, what holds them, and the handling of answers."""
