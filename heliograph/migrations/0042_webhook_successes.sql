CREATE TABLE webhook_successes (
    organization_id uuid NOT NULL,
    endpoint_id     uuid NOT NULL,
    first_event     uuid NOT NULL,
    events          uuid[] NOT NULL,
    started_at      timestamptz[] NOT NULL,
    duration_ms     integer[] NOT NULL,
    status          smallint[] NOT NULL,
    started_from    timestamptz NOT NULL,
    started_to      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, first_event, endpoint_id)
) PARTITION BY RANGE (first_event);
CREATE INDEX webhook_successes_by_endpoint ON webhook_successes (organization_id, endpoint_id, started_to);
CREATE INDEX webhook_successes_age ON webhook_successes USING brin (started_to) WITH (autosummarize = on);
COMMENT ON TABLE webhook_successes IS 'tenant: events that an endpoint took at the first attempt, many in a row: events made within the same second, attempts begun within ten';
COMMENT ON COLUMN webhook_successes.first_event IS 'the smallest of events';
COMMENT ON COLUMN webhook_successes.started_from IS 'the earliest of started_at, as started_to is the latest';
CREATE TABLE webhook_successes_rest PARTITION OF webhook_successes DEFAULT;
