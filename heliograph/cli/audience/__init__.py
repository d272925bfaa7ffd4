"""Commands about the people an organization writes to: contacts and tags, opt-outs, campaigns, a single person."""
