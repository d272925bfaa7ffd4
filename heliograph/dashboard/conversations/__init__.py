"""D5 Inbox: received messages, and replying to them."""
