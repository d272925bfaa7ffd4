"""The operations of the simulator: sends, reads, templates, errors."""
