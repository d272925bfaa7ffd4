"""Lists: which columns a person wants to see of one, of which time, and how its pages follow each other."""
