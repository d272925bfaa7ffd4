"""Pieces of many screens: charts, parts that fail alone, forms of both apps, confirmations. `kit.html` draws them."""
