"""Commands on those an organization writes to: contacts and their tags, opt-outs, campaigns, one person."""
