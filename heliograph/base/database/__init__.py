"""Database infrastructure: pool, address, clock, pulse, migrations, batches, bounded reads."""
