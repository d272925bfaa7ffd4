-- WhatsApp by Meta's Cloud API. Money is kept in millionths of the wallet's currency, as whole numbers.

CREATE TABLE whatsapp_apps (
    id              uuid PRIMARY KEY,
    app_id          text NOT NULL UNIQUE,
    secret          bytea NOT NULL,
    old_secret      bytea,
    old_secret_till timestamptz,
    verify_token    bytea NOT NULL,
    verified_at     timestamptz,
    last_callback_at timestamptz,
    created_at      timestamptz NOT NULL,
    changed_at      timestamptz NOT NULL
);
COMMENT ON TABLE whatsapp_apps IS 'reference: Meta apps, each with the secret that signs its callbacks to /in/whatsapp/{id}. Several organizations may share one. secret, old_secret and verify_token are sealed';
COMMENT ON COLUMN whatsapp_apps.verified_at IS 'when the address last answered the handshake with the right token';

CREATE TABLE whatsapp_accounts (
    organization_id       uuid NOT NULL REFERENCES organizations,
    id                    uuid NOT NULL,
    app                   uuid NOT NULL REFERENCES whatsapp_apps,
    waba_id               text NOT NULL,
    name                  text NOT NULL DEFAULT '',
    currency              text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    base_url              text NOT NULL,
    api_version           text NOT NULL,
    token                 bytea NOT NULL,
    state                 text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'removed')),
    portfolio             text NOT NULL,
    credential_status     text NOT NULL DEFAULT 'unknown'
                          CHECK (credential_status IN ('ok', 'expiring', 'missing_scope', 'invalid', 'unknown')),
    credential_detail     text NOT NULL DEFAULT '',
    credential_expires_at timestamptz,
    credential_checked_at timestamptz,
    held_until            timestamptz,
    held_reason           text,
    mirrored_at           timestamptz,
    mirror_at             timestamptz NOT NULL DEFAULT now(),
    mirror_detail         text NOT NULL DEFAULT '',
    created_at            timestamptz NOT NULL,
    changed_at            timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
);
CREATE UNIQUE INDEX whatsapp_accounts_waba ON whatsapp_accounts (waba_id) WHERE state <> 'removed';
CREATE INDEX whatsapp_accounts_mirror ON whatsapp_accounts (mirror_at) WHERE state <> 'removed';
COMMENT ON TABLE whatsapp_accounts IS 'tenant: WhatsApp Business Accounts and the credential for each. token is sealed';
COMMENT ON COLUMN whatsapp_accounts.portfolio IS 'business portfolio whose messaging limit its numbers share; the account''s own WABA id where Meta named none';
COMMENT ON COLUMN whatsapp_accounts.held_until IS 'nothing is sent before this: credential, policy or billing trouble. Then one message tries';
COMMENT ON COLUMN whatsapp_accounts.mirror_at IS 'when templates, numbers and credential are read from Meta again';

CREATE TABLE whatsapp_numbers (
    organization_id       uuid NOT NULL,
    id                    uuid NOT NULL,
    account_id            uuid NOT NULL,
    graph_id              text NOT NULL,
    display_phone_number  text NOT NULL,
    digits                text NOT NULL,
    verified_name         text NOT NULL DEFAULT '',
    state                 text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'removed')),
    connection_status     text NOT NULL DEFAULT 'unknown'
                          CHECK (connection_status IN ('connected', 'pending', 'disconnected', 'restricted', 'banned', 'unknown')),
    quality_rating        text NOT NULL DEFAULT 'unknown' CHECK (quality_rating IN ('green', 'yellow', 'red', 'unknown')),
    messaging_tier        text NOT NULL DEFAULT 'unknown',
    messaging_limit       integer,
    throughput_per_second integer NOT NULL DEFAULT 80 CHECK (throughput_per_second > 0),
    held_until            timestamptz,
    held_reason           text,
    last_callback_at      timestamptz,
    last_checked_at       timestamptz,
    applied_at            timestamptz,
    created_at            timestamptz NOT NULL,
    changed_at            timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id),
    FOREIGN KEY (organization_id, account_id) REFERENCES whatsapp_accounts
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX whatsapp_numbers_graph_id ON whatsapp_numbers (graph_id) WHERE state <> 'removed';
CREATE INDEX whatsapp_numbers_by_account ON whatsapp_numbers (organization_id, account_id);
COMMENT ON TABLE whatsapp_numbers IS 'tenant: senders of an account, mirrored from Meta';
COMMENT ON COLUMN whatsapp_numbers.graph_id IS 'Meta''s phone number id; never shown to a customer';
COMMENT ON COLUMN whatsapp_numbers.messaging_limit IS 'unique users a day outside of service windows; NULL: unlimited or unknown';
COMMENT ON COLUMN whatsapp_numbers.applied_at IS 'time of the newest event that was applied; an older one changes nothing';

CREATE TABLE whatsapp_templates (
    organization_id  uuid NOT NULL,
    id               uuid NOT NULL,
    account_id       uuid NOT NULL,
    graph_id         text NOT NULL,
    name             text NOT NULL,
    language         text NOT NULL,
    category         text NOT NULL CHECK (category IN ('utility', 'authentication', 'marketing')),
    status           text NOT NULL
                     CHECK (status IN ('approved', 'pending', 'rejected', 'paused', 'disabled', 'in_appeal', 'removed')),
    parameter_format text NOT NULL DEFAULT 'POSITIONAL' CHECK (parameter_format IN ('POSITIONAL', 'NAMED')),
    parameter_count  smallint NOT NULL,
    components       jsonb NOT NULL,
    body_preview     text NOT NULL,
    quality          text NOT NULL DEFAULT 'unknown',
    rejection_reason text,
    ttl_seconds      integer,
    held_until       timestamptz,
    disabled_locally boolean NOT NULL DEFAULT false,
    applied_at       timestamptz,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id),
    FOREIGN KEY (organization_id, account_id) REFERENCES whatsapp_accounts
);
CREATE UNIQUE INDEX whatsapp_templates_name ON whatsapp_templates (organization_id, account_id, name, language);
CREATE INDEX whatsapp_templates_graph_id ON whatsapp_templates (graph_id);
COMMENT ON TABLE whatsapp_templates IS 'tenant: templates, mirrored from Meta';
COMMENT ON COLUMN whatsapp_templates.held_until IS 'a paused one is looked at again then';
COMMENT ON COLUMN whatsapp_templates.disabled_locally IS 'an operator took it out of use; no synchronization sets it back';
COMMENT ON COLUMN whatsapp_templates.applied_at IS 'time of the newest event or reading that was applied; an older one changes nothing';

CREATE TABLE whatsapp_conversations (
    organization_id  uuid NOT NULL,
    id               uuid NOT NULL,
    number_id        uuid NOT NULL,
    recipient        text NOT NULL,
    user_id          text,
    opened_at        timestamptz,
    expires_at       timestamptz,
    referred_at      timestamptz,
    free_until       timestamptz,
    last_inbound_at  timestamptz,
    last_outbound_at timestamptz,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
) WITH (fillfactor = 70);
CREATE INDEX whatsapp_conversations_by_recipient ON whatsapp_conversations (organization_id, recipient, id);
COMMENT ON TABLE whatsapp_conversations IS 'tenant: one for each pair of number and user, with the service window that the user''s messages open';
COMMENT ON COLUMN whatsapp_conversations.recipient IS 'E.164 with +; for a user who hides the number, the user id';
COMMENT ON COLUMN whatsapp_conversations.referred_at IS 'the user came by an advertisement: an answer within a day begins 72 free hours';

CREATE TABLE whatsapp_aliases (
    organization_id uuid NOT NULL,
    number_id       uuid NOT NULL,
    alias           text NOT NULL,
    conversation_id uuid NOT NULL,
    PRIMARY KEY (organization_id, number_id, alias)
);
COMMENT ON TABLE whatsapp_aliases IS 'tenant: names that Meta has for the user of a conversation: digits as we write them, as Meta writes them, a user id';

CREATE TABLE whatsapp_messages (
    organization_id   uuid NOT NULL,
    id                uuid NOT NULL,
    direction         text NOT NULL CHECK (direction IN ('outbound', 'inbound')),
    type              text NOT NULL,
    mode              text NOT NULL CHECK (mode IN ('live', 'test')),
    status            text NOT NULL
                      CHECK (status IN ('accepted', 'queued', 'sent', 'delivered', 'read', 'failed', 'canceled')),
    number_id         uuid NOT NULL,
    conversation_id   uuid NOT NULL,
    recipient         text NOT NULL,
    template_id       uuid,
    template_name     text,
    template_language text,
    billing_category  text,
    client_reference  text,
    campaign_id       uuid,
    request_id        text NOT NULL,
    accepted_at       timestamptz NOT NULL,
    deadline_at       timestamptz,
    sent_at           timestamptz,
    delivered_at      timestamptz,
    read_at           timestamptz,
    failed_at         timestamptz,
    failure_code      text,
    event_id          uuid,
    delivered_event   boolean NOT NULL DEFAULT false,
    charge            text NOT NULL DEFAULT 'none' CHECK (charge IN ('none', 'reserved', 'consumed', 'released')),
    reserved          bigint NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    consumed          bigint NOT NULL DEFAULT 0 CHECK (consumed >= 0),
    country           text,
    pricing           text,
    CHECK (charge = 'reserved' OR reserved = 0),
    PRIMARY KEY (organization_id, id)
) PARTITION BY RANGE (id);
CREATE INDEX whatsapp_messages_by_recipient ON whatsapp_messages (organization_id, recipient, id);
CREATE INDEX whatsapp_messages_deadline ON whatsapp_messages (deadline_at) WHERE status IN ('accepted', 'queued', 'sent');
CREATE TABLE whatsapp_messages_rest PARTITION OF whatsapp_messages DEFAULT WITH (fillfactor = 75);
COMMENT ON TABLE whatsapp_messages IS 'tenant: one row a WhatsApp message, in either direction. What it says is in whatsapp_contents';
COMMENT ON COLUMN whatsapp_messages.recipient IS 'the user, in either direction: E.164 with +, or a user id';
COMMENT ON COLUMN whatsapp_messages.deadline_at IS 'Meta drops it silently after this: without a word by then it has expired';
COMMENT ON COLUMN whatsapp_messages.event_id IS 'the first contract event that this message raised';
COMMENT ON COLUMN whatsapp_messages.delivered_event IS 'message.delivered was raised: the only contract event that may follow a failure, once';
COMMENT ON COLUMN whatsapp_messages.reserved IS 'what is reserved of the wallet now, in millionths';
COMMENT ON COLUMN whatsapp_messages.pricing IS 'what Meta''s status said of the price, as "type/category"; evidence, never shown';

CREATE TABLE whatsapp_contents (
    organization_id uuid NOT NULL,
    message_id      uuid NOT NULL,
    content         text NOT NULL,
    PRIMARY KEY (organization_id, message_id)
) PARTITION BY RANGE (message_id);
CREATE TABLE whatsapp_contents_rest PARTITION OF whatsapp_contents DEFAULT;
COMMENT ON TABLE whatsapp_contents IS 'tenant: what a WhatsApp message says, as JSON: parameters of a template, a text, or what came in. Erased after the retention time';

CREATE TABLE whatsapp_attempts (
    organization_id uuid NOT NULL,
    message_id      uuid NOT NULL,
    attempt         smallint NOT NULL,
    number_id       uuid NOT NULL,
    state           text NOT NULL CHECK (state IN ('open', 'accepted', 'refused', 'busy', 'unreachable', 'unknown')),
    started_at      timestamptz NOT NULL,
    answered_at     timestamptz,
    code            text NOT NULL DEFAULT '',
    detail          text NOT NULL DEFAULT '',
    PRIMARY KEY (organization_id, message_id, attempt)
) PARTITION BY RANGE (message_id);
CREATE TABLE whatsapp_attempts_rest PARTITION OF whatsapp_attempts DEFAULT WITH (fillfactor = 80);
COMMENT ON TABLE whatsapp_attempts IS 'tenant: tries to hand a message to Meta, committed before the first byte leaves';

CREATE TABLE whatsapp_wamids (
    number_id       uuid NOT NULL,
    wamid           text NOT NULL,
    organization_id uuid NOT NULL,
    message_id      uuid NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (number_id, wamid)
);
CREATE INDEX whatsapp_wamids_age ON whatsapp_wamids USING brin (created_at);
COMMENT ON TABLE whatsapp_wamids IS 'control: Meta''s message id to ours, in both directions. Meta writes an id once, so the key is unique';

CREATE TABLE whatsapp_early_statuses (
    number_id    uuid NOT NULL,
    wamid        text NOT NULL,
    status       text NOT NULL,
    at           timestamptz NOT NULL,
    failure_code text,
    pricing      text,
    received_at  timestamptz NOT NULL,
    PRIMARY KEY (number_id, wamid, status)
);
CREATE INDEX whatsapp_early_statuses_age ON whatsapp_early_statuses (received_at);
COMMENT ON TABLE whatsapp_early_statuses IS 'control: statuses of messages that nobody knows yet; recording the answer of the send looks here. Dropped after a week';

CREATE TABLE whatsapp_callbacks (
    id          uuid PRIMARY KEY,
    app         uuid NOT NULL,
    body        bytea NOT NULL,
    items       integer NOT NULL DEFAULT 0,
    received_at timestamptz NOT NULL
);
COMMENT ON TABLE whatsapp_callbacks IS 'control: what Meta posted, as it came, stored before it is answered and deleted once it is worked through. Sealed';

CREATE TABLE whatsapp_rejects (
    id          uuid PRIMARY KEY,
    app         uuid NOT NULL,
    body        bytea NOT NULL,
    reason      text NOT NULL,
    received_at timestamptz NOT NULL
);
COMMENT ON TABLE whatsapp_rejects IS 'control: items of callbacks that could not be applied, kept for operators for a while. Sealed';

CREATE TABLE whatsapp_reached (
    portfolio  text NOT NULL,
    recipient  text NOT NULL,
    reached_at timestamptz NOT NULL,
    PRIMARY KEY (portfolio, recipient)
) WITH (fillfactor = 80);
CREATE INDEX whatsapp_reached_age ON whatsapp_reached (portfolio, reached_at);
COMMENT ON TABLE whatsapp_reached IS 'control: users written to outside of a service window, whom a portfolio''s messaging limit counts for 24 hours';

CREATE TABLE whatsapp_rates (
    currency   text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    category   text NOT NULL,
    country    text NOT NULL,
    valid_from timestamptz NOT NULL,
    price      bigint NOT NULL CHECK (price >= 0),
    created_at timestamptz NOT NULL,
    PRIMARY KEY (currency, category, country, valid_from)
);
COMMENT ON TABLE whatsapp_rates IS 'reference: price of one delivered message, in millionths, from a day on. country: an ISO region, or * for all others';

CREATE TABLE wallets (
    organization_id uuid PRIMARY KEY REFERENCES organizations,
    currency        text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    available       bigint NOT NULL DEFAULT 0,
    reserved        bigint NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    consumed        bigint NOT NULL DEFAULT 0 CHECK (consumed >= 0),
    total           bigint NOT NULL DEFAULT 0,
    updated_at      timestamptz NOT NULL,
    CHECK (total = available + reserved + consumed)
) WITH (fillfactor = 50);
COMMENT ON TABLE wallets IS 'tenant: the maintained balance for WhatsApp, in millionths; its row lock also puts an organization''s accepts in order';
COMMENT ON COLUMN wallets.available IS 'may go below zero only when Meta delivers what was given up for lost';

CREATE TABLE wallet_ledger (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    movement        text NOT NULL CHECK (movement IN ('top_up', 'adjustment', 'reserve', 'consume', 'release', 'reprice')),
    message_id      uuid,
    key             text NOT NULL DEFAULT '',
    available       bigint NOT NULL,
    reserved        bigint NOT NULL,
    consumed        bigint NOT NULL,
    reason          text,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
);
CREATE UNIQUE INDEX wallet_ledger_once ON wallet_ledger (organization_id, message_id, movement, key)
    WHERE message_id IS NOT NULL;
COMMENT ON TABLE wallet_ledger IS 'tenant: append-only changes of a wallet; the sums of available, reserved and consumed are the wallet''s';
COMMENT ON COLUMN wallet_ledger.key IS 'tells movements of one kind and message apart: what Meta said of the price';
