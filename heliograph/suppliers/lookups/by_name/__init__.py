"""One file a supplier of look-ups, with its `KIND`."""
