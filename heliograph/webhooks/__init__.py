"""Outbound webhooks: endpoints, events and who hears of them, signed deliveries, what became of each, sending again."""
