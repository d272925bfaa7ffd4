-- A message is refunded once. The index finds what was refunded before, and is the guard against a second time.
CREATE UNIQUE INDEX usage_ledger_refunds ON usage_ledger (organization_id, message_id) WHERE type = 'refund';
