"""The house: who runs the installation, what they set for it, and what they did."""
