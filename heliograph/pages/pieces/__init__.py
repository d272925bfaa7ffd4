"""Pieces of many screens: charts, ranges of time, pages of a list, confirmations. `kit.html` draws them."""
