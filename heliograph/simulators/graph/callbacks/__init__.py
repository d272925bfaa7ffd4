"""What the simulator posts by itself: statuses, messages from users, events of objects, signed and repeated."""
