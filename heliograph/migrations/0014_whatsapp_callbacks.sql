-- What callbacks need to be worked through in any order, any grouping and any number of times.

-- Sealed bytes do not get smaller: an attempt to compress them would only cost time.
ALTER TABLE whatsapp_callbacks ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE whatsapp_rejects ALTER COLUMN body SET STORAGE EXTERNAL;
COMMENT ON COLUMN whatsapp_callbacks.items IS 'statuses and messages in it, about';

ALTER TABLE whatsapp_conversations ADD COLUMN closed_at timestamptz;
COMMENT ON COLUMN whatsapp_conversations.opened_at IS 'when the user last wrote what opens the window for a day';
COMMENT ON COLUMN whatsapp_conversations.closed_at IS 'Meta said then that the window was closed: only what the user wrote later opens it';
CREATE INDEX whatsapp_conversations_referred ON whatsapp_conversations (referred_at) WHERE referred_at IS NOT NULL;

CREATE TABLE whatsapp_words (
    organization_id uuid NOT NULL,
    recipient       text NOT NULL,
    word            text NOT NULL CHECK (word IN ('stop', 'start')),
    said_at         timestamptz NOT NULL,
    PRIMARY KEY (organization_id, recipient)
);
COMMENT ON TABLE whatsapp_words IS 'tenant: the newest word for STOP or START that a user sent by WhatsApp; an older one that comes late changes nothing';
