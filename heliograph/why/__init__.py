"""The words of why: what every status, failure, reason and result means to customers and to operators, in English and
in Portuguese. `words.toml` has them, `words.py` finds them; API documents, commands and pages all show these.

The rule nobody may break: a code has one entry, and what a customer reads names no supplier.
"""
