"""What suppliers report about messages: receipts, including those without an id, and advice on how they report."""
