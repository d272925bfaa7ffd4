"""SMS: acceptance, dispatch to suppliers, receipts, and messages from handsets."""
