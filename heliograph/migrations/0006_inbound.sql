-- Messages from handsets are worked through after they were stored: parts put together, the organization found, words
-- such as STOP obeyed. due_at says when a row is looked at (next), and rows that are done are in no index of it.
ALTER TABLE inbound_messages
    ADD COLUMN due_at timestamptz DEFAULT now(),
    ADD COLUMN state text NOT NULL DEFAULT 'new'
        CHECK (state IN ('new', 'waiting', 'received', 'duplicate', 'unassigned')),
    ADD COLUMN acknowledged boolean NOT NULL DEFAULT false,
    ADD COLUMN organization_id uuid,
    ADD COLUMN message_id uuid;
COMMENT ON COLUMN inbound_messages.due_at IS 'when it is looked at; NULL: done';
COMMENT ON COLUMN inbound_messages.state IS 'waiting: for its other parts; unassigned: to a number of no organization, or of several';
COMMENT ON COLUMN inbound_messages.acknowledged IS 'our answer was written to its connection; the same again is then another message';
COMMENT ON COLUMN inbound_messages.message_id IS 'of received_messages: the message that it is, or is a part of';
CREATE INDEX inbound_messages_due ON inbound_messages (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX inbound_messages_same ON inbound_messages (sender, recipient, received_at);
CREATE INDEX inbound_messages_unassigned ON inbound_messages (id) WHERE state = 'unassigned';

-- Whose number it is, across organizations: the one look-up that knows a number and no organization.
CREATE INDEX sender_ids_approved ON sender_ids (lower(value)) WHERE status = 'approved';

CREATE TABLE received_messages (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    supplier_id     uuid NOT NULL,
    sender          text NOT NULL,
    recipient       text NOT NULL,
    sender_id       uuid NOT NULL,
    segments        smallint NOT NULL,
    missing         smallint NOT NULL DEFAULT 0,
    keyword         text CHECK (keyword IN ('stop', 'start', 'help')),
    received_at     timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
) PARTITION BY RANGE (id);
CREATE TABLE received_messages_rest PARTITION OF received_messages DEFAULT;
COMMENT ON TABLE received_messages IS 'tenant: messages from handsets, parts put together. Their text is in message_texts';
COMMENT ON COLUMN received_messages.sender IS 'the handset: E.164, or as the supplier wrote it when that is no such number';
COMMENT ON COLUMN received_messages.sender_id IS 'the sender ID that it was sent to';
COMMENT ON COLUMN received_messages.missing IS 'parts that have not come';

CREATE TABLE automatic_replies (
    organization_id uuid NOT NULL,
    recipient       text NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('stop', 'start', 'help')),
    message_id      uuid NOT NULL,
    sender_id       uuid NOT NULL,
    replied_at      timestamptz NOT NULL,
    refusal         text,
    PRIMARY KEY (organization_id, recipient, kind)
);
CREATE INDEX automatic_replies_by_message ON automatic_replies (organization_id, message_id);
COMMENT ON TABLE automatic_replies IS 'tenant: the last confirmation of each kind to a number. It bounds them, and message_id may go out though the number opted out';
COMMENT ON COLUMN automatic_replies.refusal IS 'code of the refusal, when it could not be accepted';

-- Evidence of an opt-out by a word.
ALTER TABLE opt_outs ADD COLUMN keyword text, ADD COLUMN message_id uuid;
COMMENT ON COLUMN opt_outs.source IS 'keyword, operator, or another part''s name for itself';
COMMENT ON COLUMN opt_outs.message_id IS 'of received_messages: the message that asked for it';
CREATE INDEX opt_outs_newest ON opt_outs (organization_id, since, recipient);

ALTER TABLE organizations ADD COLUMN stop_reply text, ADD COLUMN start_reply text, ADD COLUMN help_reply text;
COMMENT ON COLUMN organizations.stop_reply IS 'what STOP is answered with; NULL: a default, empty: nothing. The same for the other two';

-- Events that say what a handset wrote, until that is erased.
CREATE INDEX events_with_text ON events (id) WHERE kind = 'message.received' AND data LIKE '%"text":"%';
