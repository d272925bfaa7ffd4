"""What surrounds every operation: who asks, how often, whether it was asked before, and what the bytes mean."""
