-- One handset that writes ten thousand times must not make each look at what it wrote before read all of it: a
-- repetition is looked for among what was not acknowledged, a part among parts of the same reference.
DROP INDEX inbound_messages_same;
CREATE INDEX inbound_messages_unanswered ON inbound_messages (sender, recipient, received_at)
    WHERE NOT acknowledged AND concatenation IS NULL;
CREATE INDEX inbound_messages_parts ON inbound_messages (sender, recipient, (concatenation[1]), received_at)
    WHERE concatenation IS NOT NULL;
