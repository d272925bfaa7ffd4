-- What a read of a message tells beyond what sending it needs. Both are NULL for most messages, and then take no room.
-- No index comes with them: a search by recipient or reference looks through a bounded number of messages, rather than
-- having every message pay for an index when it is accepted.
ALTER TABLE messages ADD COLUMN send_at timestamptz, ADD COLUMN ended_at timestamptz;
COMMENT ON COLUMN messages.send_at IS 'not before this, as the sender asked; NULL: at once';
COMMENT ON COLUMN messages.ended_at IS 'when it became canceled or unknown; other ends have columns of their own';
