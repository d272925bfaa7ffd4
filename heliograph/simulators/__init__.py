"""Stand-ins for the world outside: an SMSC, Meta's Graph API, a receiver of webhooks."""
