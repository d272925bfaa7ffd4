"""Commands that run the installation or look after it: start, migrate, diagnose, simulate."""
