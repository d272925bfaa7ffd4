"""What suppliers are given of a message: made for the dispatcher (`written`), and made again for operators
(`rebuilding`)."""
