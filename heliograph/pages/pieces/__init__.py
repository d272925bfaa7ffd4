"""Pieces of many screens: charts, parts that fail independently, forms, confirmations. `kit.html` renders them."""
