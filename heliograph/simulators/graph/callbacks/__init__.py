"""What the stand-in for Meta says by itself: statuses, messages from users, news of objects, signed and repeated."""
