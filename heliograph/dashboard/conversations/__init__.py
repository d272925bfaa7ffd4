"""Inbox: received messages, and replying to them."""
