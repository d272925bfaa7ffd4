"""Management of suppliers, from a shell and in the console: typed options, changes with their differences, trials, and
effects on traffic."""
