-- What the mirror of Meta's accounts needs to follow events in any order, and to know what it reads next.

ALTER TABLE whatsapp_accounts
    ADD COLUMN numbers_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN templates_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN numbers_read_at timestamptz,
    ADD COLUMN templates_read_at timestamptz,
    ADD COLUMN failures integer NOT NULL DEFAULT 0,
    ADD COLUMN subscribed boolean;
COMMENT ON COLUMN whatsapp_accounts.numbers_at IS 'when numbers, their health and the credential are read again; templates_at: all templates. mirror_at is the next of them';
COMMENT ON COLUMN whatsapp_accounts.templates_read_at IS 'what all templates looked like at this time is known; an older event changes nothing. numbers_read_at likewise';
COMMENT ON COLUMN whatsapp_accounts.failures IS 'readings in a row that failed: the pause grows with them';
COMMENT ON COLUMN whatsapp_accounts.subscribed IS 'our app gets this account''s callbacks; NULL: not asked yet';

ALTER TABLE whatsapp_numbers ADD COLUMN applied jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN whatsapp_numbers.applied IS 'for each facet of the record, the Unix time of the newest event on it';

ALTER TABLE whatsapp_templates
    ADD COLUMN applied jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN reread_at timestamptz;
CREATE INDEX whatsapp_templates_reread ON whatsapp_templates (organization_id, account_id, reread_at)
    WHERE reread_at IS NOT NULL;
COMMENT ON COLUMN whatsapp_templates.applied IS 'for each facet of the record, the Unix time of the newest word on it alone';
COMMENT ON COLUMN whatsapp_templates.reread_at IS 'an event spoke of it: it alone is read again then';
