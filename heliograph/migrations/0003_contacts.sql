-- People that an organization writes to. Neither table has a foreign key, as no table that is filled by the million has:
-- checking one costs as much as the row. Whether somebody opted out is read from opt_outs, never stored twice.
CREATE TABLE contacts (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    name            text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    first_name      text CHECK (length(first_name) BETWEEN 1 AND 200),
    last_name       text CHECK (length(last_name) BETWEEN 1 AND 200),
    phone           text NOT NULL CHECK (phone ~ '^\+[1-9][0-9]{6,14}$'),
    tags            text[] NOT NULL DEFAULT '{}' CHECK (cardinality(tags) <= 50),
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
);
CREATE UNIQUE INDEX contacts_phone ON contacts (organization_id, phone);
COMMENT ON TABLE contacts IS 'tenant: people and their numbers, one contact a number';
COMMENT ON COLUMN contacts.tags IS 'trimmed, in lower case, each once, in the order given; contact_tags says the same the other way round';

CREATE TABLE contact_tags (
    organization_id uuid NOT NULL,
    tag             text NOT NULL,
    contact_id      uuid NOT NULL,
    PRIMARY KEY (organization_id, tag, contact_id)
);
COMMENT ON TABLE contact_tags IS 'tenant: tag to contacts, written in the transaction that writes contacts.tags';
