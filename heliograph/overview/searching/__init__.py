"""Search for operators: what an id or a name stands for, and messages across all organizations."""
