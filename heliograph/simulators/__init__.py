"""Stand-ins for the outside world: an SMSC, Meta's Graph API, aggregators' HTTP APIs, a receiver of webhooks."""
