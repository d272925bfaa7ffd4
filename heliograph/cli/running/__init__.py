"""Commands that run and maintain the installation: start, migrate, diagnose, simulate."""
