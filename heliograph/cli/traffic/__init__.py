"""Commands about the traffic: suppliers and routes, queue and holds, the guard, receipts, inbound messages."""
