"""What operators see of a supplier: what goes over its wire while they watch, masked, for minutes (`pdus`), when its
last receipt came (`heard`), how its sessions are (`sessions`), how full its window was and how long its answers took
(`hours`)."""
