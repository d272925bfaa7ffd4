"""The database seen from below: pool, address, clock, pulse, migrations, batches, bounded reads."""
