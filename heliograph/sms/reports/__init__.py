"""What suppliers report of messages: receipts, those that name no id, and advice on how they report."""
