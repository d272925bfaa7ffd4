"""D5 Inbox: what people wrote, and answering them."""
