"""What Meta posts to this service, taken in before anything is done with it."""
