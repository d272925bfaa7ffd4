"""The organization's own affairs: who it sends as, who works in it and what they did, its settings and limits,
what it is told, and its exports."""
