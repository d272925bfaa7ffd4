-- Words for a message's state that suppliers' receipts have and nobody knows, for operators.
CREATE TABLE receipt_words (
    supplier_id uuid NOT NULL REFERENCES suppliers,
    word        text NOT NULL,
    count       bigint NOT NULL,
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    PRIMARY KEY (supplier_id, word)
);
COMMENT ON TABLE receipt_words IS 'control: unknown words in receipts, counted; at most a hundred of a supplier';

-- The national tables that a handset's message names in its header (3GPP 23.038 annex A).
ALTER TABLE inbound_messages
    ADD COLUMN locking_shift smallint NOT NULL DEFAULT 0,
    ADD COLUMN single_shift  smallint NOT NULL DEFAULT 0;
COMMENT ON COLUMN inbound_messages.locking_shift IS 'language identifier of the table in place of the alphabet; 0: none';
COMMENT ON COLUMN inbound_messages.single_shift IS 'language identifier of the table behind an escape; 0: none';
