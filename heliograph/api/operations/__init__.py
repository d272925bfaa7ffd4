"""The operations: shapes and handlers, one module per resource. They call the rules, and never each other."""
