"""Commands about what SMS cost and what customers pay for them."""
