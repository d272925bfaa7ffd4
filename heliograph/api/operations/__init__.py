"""The operations, a file for each resource: shapes and handlers. They call the rules, and never each other."""
