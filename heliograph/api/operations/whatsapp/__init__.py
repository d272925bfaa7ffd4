"""The operations of WhatsApp."""

from heliograph.api.operations.whatsapp import campaigns, messages, reads, send

__all__ = ["campaigns", "messages", "reads", "send"]
