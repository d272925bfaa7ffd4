-- How far a sweep through a table has come, so that no round reads what an earlier one has read.
CREATE TABLE retention_places (
    name       text PRIMARY KEY,
    done_until timestamptz NOT NULL,
    mark       jsonb
);
COMMENT ON TABLE retention_places IS 'control: how far forgetting has come in a table';
COMMENT ON COLUMN retention_places.mark IS 'the last key, where a sweep goes by keys';

ALTER TABLE workers ADD COLUMN clock_ahead double precision NOT NULL DEFAULT 0;
COMMENT ON COLUMN workers.clock_ahead IS 'seconds by which its machine''s clock is ahead of the database''s';
