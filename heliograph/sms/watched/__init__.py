"""What goes over the wire of a supplier, as operators see it while they watch one: masked, for minutes (`pdus`)."""
