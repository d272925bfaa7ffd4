"""SMS: accepted, dispatched to suppliers, reported on by receipts, and received from handsets."""
