-- What an import of contacts did, batch by batch, so that it can be undone: whom it made, and what those were whom it
-- changed. Kept as long as texts are.
CREATE TABLE contact_imports (
    organization_id uuid NOT NULL REFERENCES organizations,
    id              uuid NOT NULL,
    file            text NOT NULL,
    started_at      timestamptz NOT NULL,
    finished_at     timestamptz,
    rows            integer NOT NULL DEFAULT 0,
    created         integer NOT NULL DEFAULT 0,
    updated         integer NOT NULL DEFAULT 0,
    rejected        integer NOT NULL DEFAULT 0,
    undone_at       timestamptz,
    PRIMARY KEY (organization_id, id)
);
COMMENT ON TABLE contact_imports IS 'tenant: files of contacts that were imported';
COMMENT ON COLUMN contact_imports.finished_at IS 'NULL: it was stopped, or is still running';

CREATE TABLE contact_import_batches (
    organization_id uuid NOT NULL,
    import_id       uuid NOT NULL,
    batch           integer NOT NULL,
    written_at      timestamptz NOT NULL,
    created         uuid[] NOT NULL,
    PRIMARY KEY (organization_id, import_id, batch)
);
COMMENT ON TABLE contact_import_batches IS 'tenant: contacts that a batch of an import made';
COMMENT ON COLUMN contact_import_batches.written_at IS 'updated_at of all that it wrote: who has another one was changed since';

CREATE TABLE contact_import_images (
    organization_id uuid NOT NULL,
    import_id       uuid NOT NULL,
    batch           integer NOT NULL,
    contact_id      uuid NOT NULL,
    name            text NOT NULL,
    first_name      text,
    last_name       text,
    tags            text[] NOT NULL,
    updated_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, import_id, batch, contact_id)
);
COMMENT ON TABLE contact_import_images IS 'tenant: what contacts were before a batch of an import changed them';
