"""Organizations: create, configure, suspend, grant quota, view as a whole; stop their campaigns."""
