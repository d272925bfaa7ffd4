"""The house: who runs the installation."""
