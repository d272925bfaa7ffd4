"""What handsets write: stored, put together, given to its organization, and answered."""
