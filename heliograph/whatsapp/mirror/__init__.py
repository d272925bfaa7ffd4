"""The mirror of our data at Meta as of the last sync: accounts, numbers, templates; and their setup."""
