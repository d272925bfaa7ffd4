"""The audience: people, their tags, opt-outs and imports."""
