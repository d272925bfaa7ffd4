-- What a number and its account have shown of themselves: whether messages of theirs are sent, what tries after a hold,
-- what Meta warned of, and what a listing left out.

ALTER TABLE whatsapp_accounts
    ADD COLUMN held_for_status boolean NOT NULL DEFAULT false,
    ADD COLUMN trying_id uuid,
    ADD COLUMN trying_at timestamptz,
    ADD COLUMN released_at timestamptz;
COMMENT ON COLUMN whatsapp_accounts.held_for_status IS 'the fault came as a status, so that only a status ends the hold: an answer says nothing of it';
COMMENT ON COLUMN whatsapp_accounts.trying_id IS 'the one message that left since the hold''s time was over; what becomes of it decides';
COMMENT ON COLUMN whatsapp_accounts.trying_at IS 'when a worker got leave to let one message try; others have none for a while';
COMMENT ON COLUMN whatsapp_accounts.released_at IS 'when an operator last ended a hold by hand';

ALTER TABLE whatsapp_numbers
    ADD COLUMN held_for_status boolean NOT NULL DEFAULT false,
    ADD COLUMN trying_id uuid,
    ADD COLUMN trying_at timestamptz,
    ADD COLUMN released_at timestamptz,
    ADD COLUMN last_sent_at timestamptz,
    ADD COLUMN missing_at timestamptz;
COMMENT ON COLUMN whatsapp_numbers.last_sent_at IS 'when a status last said that a message of this number was sent, give or take a quarter of a minute';
COMMENT ON COLUMN whatsapp_numbers.missing_at IS 'since when listings lack it although Meta has not said that it is gone';

ALTER TABLE whatsapp_templates ADD COLUMN missing_at timestamptz;
COMMENT ON COLUMN whatsapp_templates.missing_at IS 'since when listings lack it although Meta has not said that it is gone: what needs it waits';

CREATE TABLE whatsapp_warnings (
    organization_id uuid NOT NULL,
    account_id      uuid NOT NULL,
    kind            text NOT NULL CHECK (kind IN (
                    'violation', 'scheduled_disable', 'disabled', 'restriction', 'review_rejected', 'alert', 'pin_changed',
                    'partner_removed')),
    detail          text NOT NULL,
    said_at         timestamptz NOT NULL,
    over_at         timestamptz,
    PRIMARY KEY (organization_id, account_id, kind, detail),
    FOREIGN KEY (organization_id, account_id) REFERENCES whatsapp_accounts
);
COMMENT ON TABLE whatsapp_warnings IS 'tenant: what Meta said of an account that its operator must know';
COMMENT ON COLUMN whatsapp_warnings.detail IS 'Meta''s own words for it, for operators; empty: there were none';
COMMENT ON COLUMN whatsapp_warnings.over_at IS 'Meta took it back, or an operator has seen to it, then; said again later, it is open once more';
