-- Receipts that wait for their message are found by each of the ids they name, by the time of their next look, and, for
-- an attempt whose answer was lost, by the time they came. Most receipts are matched at once and never enter these
-- indexes. Orphans are in the last one only: a supplier whose receipts fit nothing leaves many. The supplier comes last
-- in each: an index that leads with it looks as good as the right one until the table was analyzed.
DROP INDEX receipts_unmatched;
CREATE INDEX receipts_early_1 ON receipts ((keys[1]), supplier_id) WHERE message_id IS NULL AND next_try_at IS NOT NULL;
CREATE INDEX receipts_early_2 ON receipts ((keys[2]), supplier_id) WHERE message_id IS NULL AND next_try_at IS NOT NULL;
CREATE INDEX receipts_due ON receipts (next_try_at) WHERE message_id IS NULL AND next_try_at IS NOT NULL;
CREATE INDEX receipts_unmatched ON receipts (received_at, supplier_id) WHERE message_id IS NULL;

-- `sub` and `dlvrd` of the text decide about all parts, also of a receipt that is matched later.
ALTER TABLE receipts ADD COLUMN submitted integer, ADD COLUMN delivered integer;

-- Parts that still wait for a word; with the others in it, each look at them would read days of traffic.
DROP INDEX sms_parts_open;
CREATE INDEX sms_parts_open ON sms_parts (created_at) WHERE parts > 1 AND state IS NULL;
