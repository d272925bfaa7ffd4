"""Outbound webhooks: endpoints, events and their subscribers, signed deliveries and their results, resends and
replays."""
