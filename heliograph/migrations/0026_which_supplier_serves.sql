-- A simulator serves only while there is no other supplier. What `up` made before is one.
ALTER TABLE suppliers ADD COLUMN simulated boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN suppliers.simulated IS 'a simulator: takes live messages only while there is no other supplier';
UPDATE suppliers SET simulated = true WHERE name = 'simulator' AND settings ->> 'host' = '127.0.0.1';

-- What a worker has bound and would use, so that the others leave to it what it carries better.
ALTER TABLE supplier_sessions ADD COLUMN ready boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN supplier_sessions.ready IS 'its worker has it bound, and the supplier''s circuit is closed there';
