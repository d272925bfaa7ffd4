"""What the simulator posts on its own: statuses, messages from users, events of objects, signed and repeated."""
