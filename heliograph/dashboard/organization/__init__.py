"""The organization's own affairs: who it sends as, who works in it, and what they did."""
