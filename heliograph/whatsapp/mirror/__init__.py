"""The mirror of Meta's data about our accounts, numbers and templates, as of the last sync; and their setup."""
