"""Stand-ins for the world outside: an SMSC, Meta's Graph API, aggregators' HTTP APIs, a receiver of webhooks."""
