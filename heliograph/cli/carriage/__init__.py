"""Commands about the path of messages: look-ups, queue and holds, suppliers, inbound."""
