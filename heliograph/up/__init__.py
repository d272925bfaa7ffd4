"""One machine, one command: PostgreSQL, migrations, web processes, worker, simulated suppliers, a demo organization.

`running` starts and stops everything, in this order: `ports` finds where to listen, `secret_keys` what to encrypt with,
`parts` are the supervised processes, and `welcome` says where everything is.
"""
