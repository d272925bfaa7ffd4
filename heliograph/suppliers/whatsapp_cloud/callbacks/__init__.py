"""Meta's webhooks: signature, items, users' messages, changes of templates, numbers and accounts."""
