"""A stand-in for an operator's SMSC, over SMPP 3.4."""
