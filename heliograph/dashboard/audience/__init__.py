"""The audience: people, their tags, opt-outs and imports, and the campaigns sent to them."""
