-- Secrets that were replaced and still sign beside the new one, newest first; sealed as `secret` is.
ALTER TABLE webhook_endpoints
    ADD COLUMN old_secrets       bytea[]       NOT NULL DEFAULT '{}',
    ADD COLUMN old_secrets_until timestamptz[] NOT NULL DEFAULT '{}',
    ADD CONSTRAINT webhook_endpoints_old_secrets CHECK (cardinality(old_secrets) = cardinality(old_secrets_until));

CREATE TABLE webhook_replays (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    endpoint_id     uuid NOT NULL,
    from_at         timestamptz NOT NULL,
    to_at           timestamptz NOT NULL CHECK (to_at > from_at),
    kinds           text[] NOT NULL,
    only_failed     boolean NOT NULL,
    status          text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'completed', 'canceled')),
    position        uuid NOT NULL,
    queued          bigint NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL,
    stepped_at      timestamptz NOT NULL,
    completed_at    timestamptz CHECK ((completed_at IS NULL) = (status = 'running')),
    PRIMARY KEY (organization_id, id),
    FOREIGN KEY (organization_id, endpoint_id) REFERENCES webhook_endpoints
);
CREATE UNIQUE INDEX webhook_replays_one ON webhook_replays (organization_id, endpoint_id) WHERE status = 'running';
CREATE INDEX webhook_replays_by_endpoint ON webhook_replays (organization_id, endpoint_id, id);
CREATE INDEX webhook_replays_next ON webhook_replays (stepped_at) WHERE status = 'running';
COMMENT ON TABLE webhook_replays IS 'tenant: ranges of time that an endpoint is sent again, and how far each has come';
COMMENT ON COLUMN webhook_replays.position IS 'the last event that was looked at';
