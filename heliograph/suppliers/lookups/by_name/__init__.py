"""One module per look-up supplier, each with its `KIND`."""
