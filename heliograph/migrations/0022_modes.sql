-- What a test key makes is a test thing: messages and campaigns say so already, and now contacts, webhook endpoints and
-- events do as well. What was there before is live, and so is what concerns things that both kinds of keys share.
ALTER TABLE contacts ADD COLUMN mode text NOT NULL DEFAULT 'live' CHECK (mode IN ('live', 'test'));
ALTER TABLE contacts DROP CONSTRAINT contacts_pkey, ADD PRIMARY KEY (organization_id, mode, id);
DROP INDEX contacts_phone;
-- The phone comes first: otherwise a look-up by id might as well go by this index, as a plan made on empty tables sees it.
CREATE UNIQUE INDEX contacts_phone ON contacts (organization_id, phone, mode);
COMMENT ON TABLE contacts IS 'tenant: people and their numbers, one contact a number and mode';

ALTER TABLE contact_tags ADD COLUMN mode text NOT NULL DEFAULT 'live';
ALTER TABLE contact_tags DROP CONSTRAINT contact_tags_pkey, ADD PRIMARY KEY (organization_id, mode, tag, contact_id);

ALTER TABLE webhook_endpoints ADD COLUMN mode text NOT NULL DEFAULT 'live' CHECK (mode IN ('live', 'test'));
ALTER TABLE events ADD COLUMN mode text NOT NULL DEFAULT 'live' CHECK (mode IN ('live', 'test'));
COMMENT ON COLUMN events.mode IS 'only endpoints and keys of this mode get it';

-- Few are active, and there may be any number of others.
CREATE INDEX webhook_endpoints_active ON webhook_endpoints (organization_id) WHERE status = 'active';
CREATE INDEX webhook_endpoints_disabled ON webhook_endpoints (organization_id, disabled_at) WHERE status = 'disabled';
CREATE INDEX api_keys_standing ON api_keys (organization_id, id) WHERE status IN ('active', 'suspended');
CREATE INDEX api_keys_ended ON api_keys (organization_id, coalesce(revoked_at, expires_at))
    WHERE status IN ('revoked', 'expired');
DROP INDEX api_keys_by_organization;
