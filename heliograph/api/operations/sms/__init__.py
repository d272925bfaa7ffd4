"""The operations of SMS."""

from heliograph.api.operations.sms import inbound, messages, send, texts

__all__ = ["inbound", "messages", "send", "texts"]
