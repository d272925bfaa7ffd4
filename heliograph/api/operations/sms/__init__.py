"""The operations of SMS."""

from heliograph.api.operations.sms import inbound, messages, send

__all__ = ["inbound", "messages", "send"]
