-- The first schema. Rules of the tables:
--   * Every table's comment names its class. tenant: organization_id comes first in keys and hot indexes.
--     reference: small, shared by all. control: routes work or identity and knows all organizations.
--   * The application makes ids (UUIDv7). No sequences, triggers, extensions, enum types or session locks.
--   * Times are timestamptz. State machines are also CHECKs, and guards inside the UPDATEs.
--   * What grows with traffic is range-partitioned by its UUIDv7 (that is, by time); what must be unique across
--     time (idempotency, supplier ids) is not.

CREATE TABLE organizations (
    id                uuid PRIMARY KEY,
    name              text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    state             text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'trial', 'past_due', 'suspended', 'closed')),
    smart_encoding    boolean NOT NULL DEFAULT false,
    allowed_countries text[],
    opt_out_words     text[] NOT NULL DEFAULT '{}',
    plan              text,
    period_start      timestamptz,
    period_end        timestamptz,
    created_at        timestamptz NOT NULL
);
COMMENT ON TABLE organizations IS 'control: the customers';
COMMENT ON COLUMN organizations.allowed_countries IS 'ISO regions that may be sent to; NULL: all';

CREATE TABLE api_keys (
    id              uuid PRIMARY KEY,
    organization_id uuid NOT NULL REFERENCES organizations,
    name            text NOT NULL,
    prefix          text NOT NULL,
    last4           text NOT NULL,
    secret_hash     bytea NOT NULL UNIQUE CHECK (length(secret_hash) = 32),
    profile         text,
    scopes          text[] NOT NULL,
    mode            text NOT NULL CHECK (mode IN ('live', 'test')),
    status          text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'suspended', 'revoked', 'expired')),
    allowed_ips     text[] NOT NULL DEFAULT '{}',
    last_used_at    timestamptz,
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz,
    revoked_at      timestamptz
);
CREATE INDEX api_keys_by_organization ON api_keys (organization_id, id);
COMMENT ON TABLE api_keys IS 'control: key hash to organization';

CREATE TABLE quotas (
    organization_id uuid PRIMARY KEY REFERENCES organizations,
    total           bigint NOT NULL DEFAULT 0,
    used            bigint NOT NULL DEFAULT 0,
    resets_at       timestamptz,
    CHECK (used >= 0), CHECK (used <= total)
) WITH (fillfactor = 50);
COMMENT ON TABLE quotas IS 'tenant: the maintained balance; its row lock also puts an organization''s accepts in order';

CREATE TABLE usage_ledger (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    type            text NOT NULL CHECK (type IN ('usage', 'refund', 'adjustment', 'grant')),
    channel         text NOT NULL CHECK (channel IN ('sms', 'whatsapp')),
    quantity        bigint NOT NULL,
    balance_after   bigint NOT NULL,
    segments        smallint,
    message_id      uuid,
    campaign_id     uuid,
    reason          text,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
);
COMMENT ON TABLE usage_ledger IS 'tenant: append-only; the sum of quantity is total - used of quotas. The id of a usage row is its message''s';

CREATE TABLE sender_ids (
    organization_id  uuid NOT NULL REFERENCES organizations,
    id               uuid NOT NULL,
    value            text NOT NULL,
    status           text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'approved', 'rejected', 'suspended')),
    is_default       boolean NOT NULL DEFAULT false,
    rejection_reason text,
    created_at       timestamptz NOT NULL,
    reviewed_at      timestamptz,
    PRIMARY KEY (organization_id, id),
    CHECK (NOT is_default OR status = 'approved')
);
CREATE UNIQUE INDEX sender_ids_value ON sender_ids (organization_id, lower(value));
CREATE UNIQUE INDEX sender_ids_default ON sender_ids (organization_id) WHERE is_default;
COMMENT ON TABLE sender_ids IS 'tenant: names and numbers that an organization may send as';

CREATE TABLE opt_outs (
    organization_id uuid NOT NULL,
    recipient       text NOT NULL,
    since           timestamptz NOT NULL,
    source          text NOT NULL,
    PRIMARY KEY (organization_id, recipient)
);
COMMENT ON TABLE opt_outs IS 'tenant: recipients that asked for no more messages';

CREATE TABLE idempotency (
    organization_id uuid NOT NULL,
    key_hash        uuid NOT NULL,
    request_hash    bytea NOT NULL CHECK (length(request_hash) = 32),
    status          smallint NOT NULL CHECK (status BETWEEN 200 AND 299),
    body            text NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, key_hash)
);
CREATE INDEX idempotency_age ON idempotency USING brin (created_at);
COMMENT ON TABLE idempotency IS 'tenant: stored outcomes; never partitioned by time, since a key must be unique across time';
COMMENT ON COLUMN idempotency.key_hash IS 'first 16 bytes of SHA-256 over method, path and key';

CREATE UNLOGGED TABLE rate_windows (
    organization_id uuid NOT NULL,
    key_id          uuid NOT NULL,
    bucket          text NOT NULL,
    window_start    timestamptz NOT NULL,
    taken           integer NOT NULL,
    PRIMARY KEY (organization_id, key_id, bucket)
) WITH (fillfactor = 50);
COMMENT ON TABLE rate_windows IS 'tenant: requests in the present minute. Unlogged: a crash may only reset a window';

CREATE TABLE messages (
    organization_id  uuid NOT NULL,
    id               uuid NOT NULL,
    status           text NOT NULL CHECK (status IN ('accepted', 'sending', 'sent', 'delivered', 'undelivered', 'failed',
                                                     'expired', 'rejected', 'canceled', 'unknown')),
    mode             text NOT NULL CHECK (mode IN ('live', 'test')),
    recipient        text NOT NULL,
    sender           text NOT NULL,
    sender_id        uuid NOT NULL,
    client_reference text,
    campaign_id      uuid,
    encoding         text NOT NULL CHECK (encoding IN ('gsm7', 'ucs2')),
    segments         smallint NOT NULL,
    guarantee        text NOT NULL CHECK (guarantee IN ('at_least_once', 'at_most_once')),
    request_id       text NOT NULL,
    accepted_at      timestamptz NOT NULL,
    expires_at       timestamptz,
    sent_at          timestamptz,
    delivered_at     timestamptz,
    failed_at        timestamptz,
    failure_code     text,
    event_id         uuid,
    PRIMARY KEY (organization_id, id)
) PARTITION BY RANGE (id);
COMMENT ON TABLE messages IS 'tenant: one row an SMS. No text, so that erasing text leaves these rows alone';
COMMENT ON COLUMN messages.event_id IS 'the one contract event that this message raised';
COMMENT ON COLUMN messages.expires_at IS 'not worth delivering after this; NULL: the default of the retry schedule';

CREATE TABLE message_texts (
    organization_id uuid NOT NULL,
    message_id      uuid NOT NULL,
    body            text NOT NULL,
    PRIMARY KEY (organization_id, message_id)
) PARTITION BY RANGE (message_id);
COMMENT ON TABLE message_texts IS 'tenant: what a message says, erased after the retention time';

CREATE TABLE sms_attempts (
    organization_id uuid NOT NULL,
    message_id      uuid NOT NULL,
    attempt         smallint NOT NULL,
    supplier_id     uuid NOT NULL,
    reference       integer NOT NULL,
    state           text NOT NULL CHECK (state IN ('open', 'accepted', 'refused', 'busy', 'unreachable', 'unknown')),
    started_at      timestamptz NOT NULL,
    answered_at     timestamptz,
    code            text NOT NULL DEFAULT '',
    detail          text NOT NULL DEFAULT '',
    PRIMARY KEY (organization_id, message_id, attempt)
) PARTITION BY RANGE (message_id);
COMMENT ON TABLE sms_attempts IS 'tenant: tries to hand a message to a supplier, committed before the first byte leaves';

CREATE TABLE sms_parts (
    supplier_id      uuid NOT NULL,
    id_key           text NOT NULL,
    message_id       uuid NOT NULL,
    attempt          smallint NOT NULL,
    part             smallint NOT NULL,
    parts            smallint NOT NULL,
    organization_id  uuid NOT NULL,
    recipient_suffix text NOT NULL,
    state            text,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (supplier_id, id_key, message_id, attempt, part)
);
CREATE INDEX sms_parts_by_message ON sms_parts (message_id) WHERE parts > 1;
CREATE INDEX sms_parts_open ON sms_parts (created_at) WHERE parts > 1;
CREATE INDEX sms_parts_age ON sms_parts USING brin (created_at) WITH (pages_per_range = 16);
COMMENT ON TABLE sms_parts IS 'control: supplier message id to message. Ids come again (wrap, restart), so the key is not unique';
COMMENT ON COLUMN sms_parts.state IS 'final word of a receipt, kept for messages of several parts only';

CREATE TABLE receipts (
    received_on     date NOT NULL,
    supplier_id     uuid NOT NULL,
    fingerprint     uuid NOT NULL,
    keys            text[] NOT NULL,
    state           text NOT NULL,
    recipient       text NOT NULL,
    sender          text NOT NULL,
    reference       integer,
    error           text NOT NULL,
    raw             bytea NOT NULL,
    received_at     timestamptz NOT NULL,
    organization_id uuid,
    message_id      uuid,
    attempt         smallint,
    part            smallint,
    tries           smallint NOT NULL DEFAULT 0,
    next_try_at     timestamptz,
    PRIMARY KEY (received_on, supplier_id, fingerprint)
) PARTITION BY RANGE (received_on);
CREATE INDEX receipts_unmatched ON receipts (supplier_id, next_try_at) WHERE message_id IS NULL;
CREATE INDEX receipts_by_message ON receipts (message_id) WHERE message_id IS NOT NULL;
COMMENT ON TABLE receipts IS 'control: every receipt with its raw bytes; a redelivered one meets its own fingerprint';
COMMENT ON COLUMN receipts.next_try_at IS 'when an unmatched one is looked at again; NULL on an unmatched one: an orphan';

CREATE TABLE inbound_messages (
    id            uuid PRIMARY KEY,
    supplier_id   uuid NOT NULL,
    sender        text NOT NULL,
    recipient     text NOT NULL,
    data_coding   smallint NOT NULL,
    body          bytea NOT NULL,
    raw           bytea NOT NULL,
    concatenation integer[],
    received_at   timestamptz NOT NULL
);
COMMENT ON TABLE inbound_messages IS 'control: messages from handsets as they came, stored before they are acknowledged';

CREATE TABLE events (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    kind            text NOT NULL,
    message_id      uuid,
    request_id      text NOT NULL,
    data            text NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
) PARTITION BY RANGE (id);
COMMENT ON TABLE events IS 'tenant: what happened, recorded in the transaction that made it happen. data is JSON, sent as it stands';

CREATE TABLE webhook_endpoints (
    organization_id      uuid NOT NULL REFERENCES organizations,
    id                   uuid NOT NULL,
    url                  text NOT NULL CHECK (length(url) <= 2048),
    subscribed_events    text[] NOT NULL,
    status               text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'disabled')),
    secret               bytea NOT NULL,
    created_at           timestamptz NOT NULL,
    disabled_at          timestamptz,
    disabled_reason      text,
    last_success_at      timestamptz,
    failing_since        timestamptz,
    consecutive_failures integer NOT NULL DEFAULT 0,
    PRIMARY KEY (organization_id, id)
) WITH (fillfactor = 70);
COMMENT ON TABLE webhook_endpoints IS 'tenant: where events go. secret is sealed';

CREATE TABLE webhook_attempts (
    organization_id uuid NOT NULL,
    event_id        uuid NOT NULL,
    endpoint_id     uuid NOT NULL,
    attempt         smallint NOT NULL,
    started_at      timestamptz NOT NULL,
    duration_ms     integer NOT NULL,
    status          smallint,
    result          text NOT NULL,
    detail          text NOT NULL,
    PRIMARY KEY (organization_id, event_id, endpoint_id, attempt)
) PARTITION BY RANGE (event_id);
CREATE INDEX webhook_attempts_by_endpoint ON webhook_attempts (organization_id, endpoint_id, started_at);
COMMENT ON TABLE webhook_attempts IS 'tenant: tries to deliver an event to an endpoint';

CREATE TABLE queue (
    kind            text NOT NULL,
    line            uuid NOT NULL,
    lane            smallint NOT NULL DEFAULT 0,
    organization_id uuid NOT NULL,
    due_at          timestamptz NOT NULL,
    id              uuid NOT NULL,
    tries           smallint NOT NULL DEFAULT 0,
    claims          smallint NOT NULL DEFAULT 0,
    lease_until     timestamptz,
    lease_token     uuid,
    PRIMARY KEY (id, line)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);
CREATE INDEX queue_line ON queue (kind, line, lane, organization_id, due_at);
COMMENT ON TABLE queue IS 'control: work to be done, narrow, deleted when done';
COMMENT ON COLUMN queue.line IS 'a supplier or an endpoint, which is served in turn with others; no line is used by two kinds for one id';
COMMENT ON COLUMN queue.lane IS '0 goes before 1';
COMMENT ON COLUMN queue.claims IS 'times it was claimed; from the second on, earlier tries may have left traces';

CREATE TABLE suppliers (
    id         uuid PRIMARY KEY,
    name       text NOT NULL UNIQUE,
    kind       text NOT NULL CHECK (kind IN ('smpp')),
    settings   jsonb NOT NULL,
    secret     bytea NOT NULL,
    state      text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'removed')),
    prefixes   text[] NOT NULL DEFAULT '{}',
    priority   smallint NOT NULL DEFAULT 10,
    weight     smallint NOT NULL DEFAULT 1 CHECK (weight > 0),
    sessions   smallint NOT NULL DEFAULT 1 CHECK (sessions > 0),
    parts      text NOT NULL DEFAULT 'all' CHECK (parts IN ('all', 'any', 'first', 'last')),
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL
);
COMMENT ON TABLE suppliers IS 'reference: accounts that carry messages. secret is sealed; prefixes: E.164 digits, empty for all';
COMMENT ON COLUMN suppliers.parts IS 'whose receipts decide a message of several parts';

CREATE TABLE supplier_sessions (
    supplier_id uuid NOT NULL REFERENCES suppliers,
    slot        smallint NOT NULL,
    worker_id   uuid NOT NULL,
    lease_until timestamptz NOT NULL,
    bound       boolean NOT NULL DEFAULT false,
    detail      text NOT NULL DEFAULT '',
    PRIMARY KEY (supplier_id, slot)
);
COMMENT ON TABLE supplier_sessions IS 'control: which worker may open which of an account''s sessions';

CREATE TABLE timers (
    name       text PRIMARY KEY,
    next_at    timestamptz NOT NULL,
    done_until timestamptz
);
COMMENT ON TABLE timers IS 'control: periodic work; the worker that moves next_at runs it';
COMMENT ON COLUMN timers.done_until IS 'how far a sweep through time has come';

CREATE TABLE workers (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL
);
COMMENT ON TABLE workers IS 'control: living worker processes, for health checks';

-- A net under the partitions that the worker makes ahead: a row must never be refused because a clock ran ahead.
CREATE TABLE messages_rest PARTITION OF messages DEFAULT WITH (fillfactor = 75);
CREATE TABLE message_texts_rest PARTITION OF message_texts DEFAULT;
CREATE TABLE sms_attempts_rest PARTITION OF sms_attempts DEFAULT WITH (fillfactor = 80);
CREATE TABLE receipts_rest PARTITION OF receipts DEFAULT;
CREATE TABLE events_rest PARTITION OF events DEFAULT;
CREATE TABLE webhook_attempts_rest PARTITION OF webhook_attempts DEFAULT;
