"""Lists: which columns a person wants to see of one."""
