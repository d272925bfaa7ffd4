-- The schema. Rules for tables:
--   * Every table's comment begins with its class. tenant: organization_id comes first in keys and hot indexes.
--     reference: small, shared by all. control: routes work or identity, across organizations.
--   * The application generates ids (UUIDv7). No sequences, triggers, extensions, enum types or session locks.
--   * Times are timestamptz, and those that matter to decisions are the database's. State machines are also CHECKs here,
--     and guards inside the UPDATEs.
--   * Tables that grow with traffic are range-partitioned by time, by UUIDv7 or by day, into months or days. Partitions
--     are created ahead of time by heliograph/base/database/migrate.py; `_rest` is a safety net: a row must never be
--     refused because a clock ran ahead.
--   * Tables with millions of rows have no foreign keys: checking one costs as much as the row. Constraints on a single
--     column are domains: PostgreSQL parses a table's CHECK again for each statement, which was half of the cost of
--     inserting a message, but a domain's once per session.
--   * A row is looked up by (organization_id, id). On a table that is still empty the planner may choose another index
--     that begins with the organization, which then reads all of the organization's rows, and it keeps the plan when
--     there are millions. Hence the predicates that are always true (`WHERE recipient IS NOT NULL`): only a search by
--     that column implies them, so nothing else can use the index.
-- A CHECK on one column is named table_column_check, a primary key table_pkey; everything else is named here.
-- Areas: organizations and access, people, quota, contacts and consent, campaigns, suppliers, SMS sent, SMS received,
-- WhatsApp, events and webhooks, traffic, requests, guard, work.

CREATE DOMAIN live_or_test AS text CHECK (VALUE IN ('live', 'test'));
CREATE DOMAIN sms_status AS text CHECK (VALUE IN ('accepted', 'sent', 'delivered', 'undelivered', 'failed', 'expired',
                                                  'rejected', 'canceled', 'unknown'));
CREATE DOMAIN sms_encoding AS text CHECK (VALUE IN ('gsm7', 'ucs2'));
CREATE DOMAIN sms_guarantee AS text CHECK (VALUE IN ('at_least_once', 'at_most_once'));
CREATE DOMAIN traffic_class AS text CHECK (VALUE IN ('otp', 'transactional', 'marketing'));
CREATE DOMAIN attempt_state AS text CHECK (VALUE IN ('accepted', 'refused', 'busy', 'unreachable', 'unknown'));
CREATE DOMAIN whatsapp_status AS text CHECK (VALUE IN ('accepted', 'sent', 'delivered', 'read', 'failed', 'canceled'));
CREATE DOMAIN whatsapp_direction AS text CHECK (VALUE IN ('outbound', 'inbound'));
CREATE DOMAIN whatsapp_charge AS text CHECK (VALUE IN ('none', 'reserved', 'consumed', 'released'));
CREATE DOMAIN wallet_movement AS text CHECK (VALUE IN ('reserve', 'consume', 'release', 'reprice'));
CREATE DOMAIN amount AS bigint CHECK (VALUE >= 0);
CREATE DOMAIN positive_amount AS bigint CHECK (VALUE > 0);
CREATE DOMAIN currency_code AS text CHECK (VALUE ~ '^[A-Z]{3}$');
CREATE DOMAIN sha256_digest AS bytea CHECK (length(VALUE) = 32);


-- -- Organizations and access -----------------------------------------------------------------------------------------

CREATE TABLE organizations (
    id                uuid PRIMARY KEY,
    name              text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    state             text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'trial', 'past_due', 'suspended', 'closed')),
    resumes_as        text CHECK (resumes_as IN ('active', 'trial', 'past_due')),
    country           text CHECK (country ~ '^[A-Z]{2}$'),
    allowed_countries text[],
    smart_encoding    boolean NOT NULL DEFAULT false,
    replace_accents   boolean NOT NULL DEFAULT false,
    opt_out_words     text[] NOT NULL DEFAULT '{}',
    stop_reply        text,
    start_reply       text,
    help_reply        text,
    reply_language    text CHECK (reply_language ~ '^[a-z]{2}$'),
    time_zone         text,
    factor_required   boolean NOT NULL DEFAULT false,
    session_hours     integer CHECK (session_hours BETWEEN 1 AND 720),
    reveals           boolean NOT NULL DEFAULT true,
    developer_keys    boolean NOT NULL DEFAULT false,
    guarantee         text NOT NULL DEFAULT 'at_least_once' CHECK (guarantee IN ('at_least_once', 'at_most_once')),
    validity_seconds  integer CHECK (validity_seconds BETWEEN 60 AND 259200),
    text_days         integer CHECK (text_days BETWEEN 1 AND 3650),
    message_days      integer CHECK (message_days BETWEEN 30 AND 3650),
    notice_ways       text NOT NULL DEFAULT '{}',
    quiet_hours       text NOT NULL DEFAULT 'country'
        CHECK (quiet_hours IN ('country', 'off') OR quiet_hours ~ '^[0-2][0-9]:[0-5][0-9]-[0-2][0-9]:[0-5][0-9]$'),
    approval_above    integer CHECK (approval_above >= 0),
    rate_sms_send     integer CHECK (rate_sms_send BETWEEN 1 AND 1000000),
    rate_campaigns    integer CHECK (rate_campaigns BETWEEN 1 AND 1000000),
    rate_mutations    integer CHECK (rate_mutations BETWEEN 1 AND 1000000),
    rate_reads        integer CHECK (rate_reads BETWEEN 1 AND 1000000),
    plan              text,
    allowance         bigint CHECK (allowance >= 0),
    period_anchor     timestamptz,
    period_months     smallint CHECK (period_months BETWEEN 1 AND 120),
    period_start      timestamptz,
    period_end        timestamptz,
    price_list_id     uuid,
    created_at        timestamptz NOT NULL
);
CREATE UNIQUE INDEX organizations_name ON organizations (lower(name));
CREATE INDEX organizations_due ON organizations (period_end) WHERE period_anchor IS NOT NULL;
COMMENT ON TABLE organizations IS 'control: customers. Operators refer to them by name, so names are unique, ignoring case';
COMMENT ON COLUMN organizations.country IS 'ISO region for reading national numbers in files and on the command line; NULL: they are refused';
COMMENT ON COLUMN organizations.allowed_countries IS 'ISO regions that messages may be sent to; NULL: all';
COMMENT ON COLUMN organizations.replace_accents IS 'send accented letters that GSM-7 lacks without accents if the text then fits it; implies smart_encoding';
COMMENT ON COLUMN organizations.stop_reply IS 'reply to STOP; NULL: a default; empty: no reply. The same for the other two';
COMMENT ON COLUMN organizations.time_zone IS 'IANA name, for members who have not chosen one; NULL: UTC';
COMMENT ON COLUMN organizations.factor_required IS 'members without a second factor see nothing of the organization';
COMMENT ON COLUMN organizations.session_hours IS 'hours of inactivity after which a session ends; NULL: only the session''s own limit applies';
COMMENT ON COLUMN organizations.guarantee IS 'for sends that do not name one. The same for validity_seconds; NULL: as in the retry schedule';
COMMENT ON COLUMN organizations.quiet_hours IS 'when marketing waits, in the recipient''s time zone: as the recipient''s country prescribes, never (off), or HH:MM-HH:MM. See classes/quiet.py';
COMMENT ON COLUMN organizations.notice_ways IS 'how its people are notified, as JSON: kind of notice -> ways, where they differ from heliograph/notices/kinds.py';
COMMENT ON COLUMN organizations.resumes_as IS 'while suspended or closed: the state it was in before; NULL: none';
COMMENT ON COLUMN organizations.text_days IS 'texts are erased after this many days, if that is sooner than the installation''s limit; NULL: only that limit applies';
COMMENT ON COLUMN organizations.message_days IS 'messages are removed with their numbers after this many days, texts no later; NULL: only the installation''s limit applies';
COMMENT ON COLUMN organizations.rate_sms_send IS 'requests per minute for each of its keys; NULL: the installation''s limit. The same for the other three';
COMMENT ON COLUMN organizations.reveals IS 'members who see no texts or full numbers may reveal those of one message at a time, which is recorded';
COMMENT ON COLUMN organizations.developer_keys IS 'developers may create and revoke live keys, too';
COMMENT ON COLUMN organizations.allowance IS 'quota granted each period; NULL: the plan leaves the quota alone';
COMMENT ON COLUMN organizations.period_anchor IS 'the n-th period begins n × period_months after it, so that a period that began on the 31st returns to the 31st after a shorter month';
COMMENT ON COLUMN organizations.price_list_id IS 'a tariff; NULL: the default price list';

CREATE TABLE text_keys (
    organization_id uuid PRIMARY KEY CONSTRAINT text_keys_organization REFERENCES organizations,
    sealed          bytea,
    is_used         boolean NOT NULL,
    created_at      timestamptz NOT NULL
);
COMMENT ON TABLE text_keys IS 'tenant: keys of organizations that want their texts sealed at rest';
COMMENT ON COLUMN text_keys.sealed IS 'the key, sealed; NULL: destroyed when the organization was closed, and its texts with it';
COMMENT ON COLUMN text_keys.is_used IS 'new texts are sealed with it; otherwise it is only used to open them';

CREATE TABLE api_keys (
    id              uuid PRIMARY KEY,
    organization_id uuid NOT NULL CONSTRAINT api_keys_organization REFERENCES organizations,
    name            text NOT NULL,
    mode            text NOT NULL CHECK (mode IN ('live', 'test')),
    profile         text,
    scopes          text[] NOT NULL,
    status          text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'suspended', 'revoked', 'expired')),
    prefix          text NOT NULL,
    last4           text NOT NULL,
    secret_hash     bytea NOT NULL CONSTRAINT api_keys_secret_hash UNIQUE CHECK (length(secret_hash) = 32),
    allowed_ips     text[] NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz,
    revoked_at      timestamptz,
    last_used_at    timestamptz,
    last_used_from  text,
    last_used_for   text,
    networks        text[] NOT NULL DEFAULT '{}',
    replaced_by     uuid
);
-- An organization has few valid keys, and any number of others.
CREATE INDEX api_keys_standing ON api_keys (organization_id, id) WHERE status IN ('active', 'suspended');
CREATE INDEX api_keys_ended ON api_keys (organization_id, coalesce(revoked_at, expires_at), id)
    WHERE status IN ('revoked', 'expired');
-- Keys about to expire, of all organizations; most keys never do.
CREATE INDEX api_keys_expiring ON api_keys (expires_at) WHERE status = 'active' AND expires_at IS NOT NULL;
-- Operators' lists, of all organizations or one, with or without revoked keys.
CREATE INDEX api_keys_newest ON api_keys (organization_id, id);
CREATE INDEX api_keys_unrevoked ON api_keys (id) WHERE status <> 'revoked';
CREATE INDEX api_keys_unrevoked_of ON api_keys (organization_id, id) WHERE status <> 'revoked';
-- Operators' searches across organizations: by the beginning of a name and the end of a key.
CREATE INDEX api_keys_begin ON api_keys ((lower(name) COLLATE "C"));
CREATE INDEX api_keys_last4 ON api_keys (last4);
COMMENT ON TABLE api_keys IS 'control: key hash to organization';
COMMENT ON COLUMN api_keys.networks IS 'networks it was used from (IPv4 /24, IPv6 /48), the 20 newest';
COMMENT ON COLUMN api_keys.last_used_from IS 'the client''s address at last_used_at';
COMMENT ON COLUMN api_keys.last_used_for IS 'the operation at last_used_at: an operationId';
COMMENT ON COLUMN api_keys.replaced_by IS 'the key created by rotating this one, which works until expires_at';

CREATE UNLOGGED TABLE rate_windows (
    organization_id uuid NOT NULL,
    key_id          uuid NOT NULL,
    bucket          text NOT NULL,
    window_start    timestamptz NOT NULL,
    taken           integer NOT NULL,
    PRIMARY KEY (organization_id, key_id, bucket)
) WITH (fillfactor = 50);
COMMENT ON TABLE rate_windows IS 'tenant: requests in the current minute. Unlogged: the worst a crash can do is reset a window';

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
COMMENT ON TABLE idempotency IS 'tenant: stored responses to mutations other than sends, of which there are few';
COMMENT ON COLUMN idempotency.key_hash IS 'first 16 bytes of SHA-256 over the API key''s mode, method, path and key';

CREATE TABLE send_keys (
    organization_id uuid NOT NULL,
    key_hash        uuid NOT NULL,
    made_on         date NOT NULL,
    request_hash    sha256_digest NOT NULL,
    message_id      uuid NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, key_hash, made_on)
) PARTITION BY RANGE (made_on);
CREATE TABLE send_keys_rest PARTITION OF send_keys DEFAULT;
COMMENT ON TABLE send_keys IS 'tenant: idempotency keys of sends, by day. A key is unique across days because accepting locks the organization''s balance or wallet and searches all days that are still valid';
COMMENT ON COLUMN send_keys.key_hash IS 'as in idempotency';
COMMENT ON COLUMN send_keys.message_id IS 'its row suffices to rebuild the response byte for byte';

CREATE TABLE audit_log (
    id              uuid NOT NULL,
    organization_id uuid,
    at              timestamptz NOT NULL,
    who             text NOT NULL CHECK (who IN ('person', 'key', 'operator', 'cli', 'system', 'unknown')),
    who_id          uuid,
    who_name        text NOT NULL DEFAULT '',
    action          text NOT NULL,
    object_id       text NOT NULL,
    object_name     text NOT NULL DEFAULT '',
    before          text,
    after           text,
    reason          text NOT NULL DEFAULT '',
    address         text NOT NULL DEFAULT '',
    device          text NOT NULL DEFAULT '',
    request_id      text NOT NULL DEFAULT '',
    count           integer NOT NULL DEFAULT 1 CHECK (count > 0),
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX audit_log_by_organization ON audit_log (organization_id, id);
CREATE INDEX audit_log_by_object ON audit_log (object_id, id);
CREATE INDEX audit_log_age ON audit_log USING brin (at) WITH (autosummarize = on);
CREATE TABLE audit_log_rest PARTITION OF audit_log DEFAULT;
COMMENT ON TABLE audit_log IS 'control: who changed what, written in the transaction of the change. Append-only: the application''s role may only insert and read';
COMMENT ON COLUMN audit_log.organization_id IS 'NULL: it concerns the whole installation';
COMMENT ON COLUMN audit_log.before IS 'what changed, as JSON; secrets are blanked, phone numbers masked. The same for after';
COMMENT ON COLUMN audit_log.count IS 'for failed authentications: how many from one address in one minute';


-- The bell: notices that need somebody's attention.

CREATE TABLE notices (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    mode            text NOT NULL CHECK (mode IN ('live', 'test')),
    kind            text NOT NULL,
    object          text NOT NULL,
    name            text NOT NULL,
    facts           text NOT NULL,
    user_id         uuid,
    is_told         boolean NOT NULL DEFAULT false,
    created_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (organization_id, id)
);
CREATE INDEX notices_untold ON notices (created_at) WHERE NOT is_told;
CREATE INDEX notices_by_object ON notices (organization_id, kind, object, created_at);
CREATE INDEX notices_age ON notices USING brin (created_at) WITH (autosummarize = on);
COMMENT ON TABLE notices IS 'tenant: notices of the bell, written by the code that causes them, kept for 90 days';
COMMENT ON COLUMN notices.object IS 'its subject: an id, or a placeholder if an organization has only one such subject';
COMMENT ON COLUMN notices.user_id IS 'the only person it is for; NULL: everybody who may see its subject';
COMMENT ON COLUMN notices.is_told IS 'its mails and webhook events, if it has any, have been queued; the bell needs neither';
COMMENT ON COLUMN notices.facts IS 'values for its text, depending on its kind, as JSON';

CREATE TABLE notice_reads (
    organization_id uuid NOT NULL,
    user_id         uuid NOT NULL,
    read_to         uuid NOT NULL,
    PRIMARY KEY (organization_id, user_id)
);
COMMENT ON TABLE notice_reads IS 'tenant: how far a person has read an organization''s notices; deleted with their membership';


-- -- People -----------------------------------------------------------------------------------------------------------

CREATE TABLE users (
    id           uuid PRIMARY KEY,
    email        text NOT NULL CONSTRAINT users_email UNIQUE CHECK (email = lower(email) AND length(email) BETWEEN 3 AND 254),
    name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    password     text,
    totp         bytea,
    totp_step    bigint NOT NULL DEFAULT 0,
    language     text,
    time_zone    text,
    columns      jsonb NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL,
    signed_in_at timestamptz
);
COMMENT ON TABLE users IS 'control: people who use the dashboard';
COMMENT ON COLUMN users.password IS 'argon2id, in PHC format; NULL: none chosen yet, sign-in is by link only';
COMMENT ON COLUMN users.totp IS 'sealed secret of the authenticator app; NULL: none';
COMMENT ON COLUMN users.columns IS 'names of the columns that the person wants to see, by list and in order; lists without an entry show the usual ones';
COMMENT ON COLUMN users.totp_step IS 'time step (RFC 6238) of the last code used: each code is accepted once';

CREATE TABLE recovery_codes (
    user_id   uuid NOT NULL CONSTRAINT recovery_codes_user REFERENCES users ON DELETE CASCADE,
    code_hash bytea NOT NULL CHECK (length(code_hash) = 32),
    PRIMARY KEY (user_id, code_hash)
);
COMMENT ON TABLE recovery_codes IS 'control: recovery codes for a lost authenticator app; deleted when used';

CREATE TABLE passkeys (
    user_id       uuid NOT NULL CONSTRAINT passkeys_user REFERENCES users ON DELETE CASCADE,
    id            uuid NOT NULL,
    credential_id bytea NOT NULL CONSTRAINT passkeys_credential_id UNIQUE CHECK (length(credential_id) BETWEEN 1 AND 1023),
    public_key    bytea NOT NULL,
    uses          bigint NOT NULL,
    name          text NOT NULL CHECK (length(name) BETWEEN 1 AND 60),
    created_at    timestamptz NOT NULL,
    used_at       timestamptz,
    PRIMARY KEY (user_id, id)
);
COMMENT ON TABLE passkeys IS 'control: public keys of passkeys (WebAuthn) on a person''s devices';
COMMENT ON COLUMN passkeys.uses IS 'the device''s signature counter; 0 if it keeps none';

CREATE TABLE passkey_challenges (
    hash    bytea PRIMARY KEY CHECK (length(hash) = 32),
    used_at timestamptz NOT NULL
);
COMMENT ON TABLE passkey_challenges IS 'control: used challenges, kept for longer than they are valid: each is accepted once';

CREATE TABLE memberships (
    organization_id uuid NOT NULL CONSTRAINT memberships_organization REFERENCES organizations,
    user_id         uuid NOT NULL CONSTRAINT memberships_user REFERENCES users ON DELETE CASCADE,
    role            text NOT NULL,
    notice_ways     text NOT NULL DEFAULT '{}',
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, user_id)
);
CREATE INDEX memberships_of_user ON memberships (user_id);
COMMENT ON TABLE memberships IS 'tenant: members of an organization and their roles';
COMMENT ON COLUMN memberships.role IS 'a name of heliograph/people/roles.py';
COMMENT ON COLUMN memberships.notice_ways IS 'as in organizations, for kinds for which the person chose other ways';

CREATE TABLE invitations (
    organization_id uuid NOT NULL CONSTRAINT invitations_organization REFERENCES organizations,
    id              uuid NOT NULL,
    email           text NOT NULL CHECK (email = lower(email)),
    role            text NOT NULL,
    note            text NOT NULL DEFAULT '' CHECK (length(note) <= 500),
    token_hash      bytea NOT NULL CONSTRAINT invitations_token_hash UNIQUE CHECK (length(token_hash) = 32),
    invited_by      uuid,
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id),
    CONSTRAINT invitations_email UNIQUE (organization_id, email)
);
COMMENT ON TABLE invitations IS 'tenant: pending invitations; deleted when accepted or withdrawn, or 30 days after they expired';
COMMENT ON COLUMN invitations.invited_by IS 'a user, or NULL for an operator on the command line';

CREATE TABLE sign_in_links (
    token_hash bytea PRIMARY KEY CHECK (length(token_hash) = 32),
    user_id    uuid NOT NULL CONSTRAINT sign_in_links_user REFERENCES users ON DELETE CASCADE,
    realm      text NOT NULL DEFAULT 'dashboard' CHECK (realm IN ('dashboard', 'console')),
    is_mailed  boolean NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT sign_in_links_one UNIQUE (user_id, realm)
);
COMMENT ON TABLE sign_in_links IS 'control: one-time sign-in links, one per person and realm; deleted when used';
COMMENT ON COLUMN sign_in_links.realm IS 'where it signs in: a link to the dashboard never opens the console';
COMMENT ON COLUMN sign_in_links.is_mailed IS 'people with a second factor must give its code too: a mailbox is not a factor';

CREATE TABLE email_changes (
    user_id         uuid PRIMARY KEY CONSTRAINT email_changes_user REFERENCES users ON DELETE CASCADE,
    token_hash      bytea NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    email           text NOT NULL CHECK (email = lower(email) AND length(email) BETWEEN 3 AND 254),
    session_id      uuid NOT NULL,
    organization_id uuid,
    expires_at      timestamptz NOT NULL
);
COMMENT ON TABLE email_changes IS 'control: new e-mail addresses of people, until confirmed from their mailboxes; deleted when used';
COMMENT ON COLUMN email_changes.session_id IS 'the session, of either realm, that stays signed in when the address changes';
COMMENT ON COLUMN email_changes.organization_id IS 'the organization whose audit log records the change: the one the person was viewing; NULL: only the installation''s';

CREATE TABLE own_numbers (
    user_id     uuid PRIMARY KEY CONSTRAINT own_numbers_user REFERENCES users ON DELETE CASCADE,
    phone       text,
    asked       text,
    asked_at    timestamptz,
    code_hash   bytea CHECK (length(code_hash) = 32),
    tries       smallint NOT NULL DEFAULT 0,
    codes       smallint NOT NULL,
    codes_since timestamptz NOT NULL
);
COMMENT ON TABLE own_numbers IS 'control: the number to which a person sends their tests. It belongs to their account, not to an organization, and is deleted with it';
COMMENT ON COLUMN own_numbers.phone IS 'E.164; NULL: none is confirmed yet';
COMMENT ON COLUMN own_numbers.asked IS 'the number to which a code was sent that has not been entered yet';
COMMENT ON COLUMN own_numbers.codes IS 'codes sent within the hour that began at codes_since';

CREATE TABLE mails (
    id              uuid PRIMARY KEY,
    kind            text NOT NULL CHECK (kind IN ('invitation', 'link', 'forgotten', 'email', 'notices', 'trial', 'report')),
    organization_id uuid,
    subject_id      uuid,
    sealed          bytea CHECK (length(sealed) <= 16384),
    state           text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sent', 'failed', 'dropped')),
    reason          text NOT NULL DEFAULT '',
    attempts        integer NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL,
    due_at          timestamptz NOT NULL,
    deadline        timestamptz NOT NULL,
    CONSTRAINT mails_erased CHECK ((state = 'waiting') = (sealed IS NOT NULL))
);
CREATE INDEX mails_due ON mails (due_at) WHERE state = 'waiting';
CREATE INDEX mails_late ON mails (deadline) WHERE state = 'waiting';
CREATE INDEX mails_of_subject ON mails (subject_id, created_at);
CREATE INDEX mails_of_organization ON mails (organization_id, created_at);
CREATE INDEX mails_age ON mails (created_at);
COMMENT ON TABLE mails IS 'control: mails to people, sent by workers; rows are kept for a week, texts only until sent';
COMMENT ON COLUMN mails.kind IS 'forgotten: a password reset was requested; a worker looks up the person and creates the link. email: a person''s new address is to be confirmed, or was changed. notices: something needs attention. trial: an operator tests whether mails arrive. report: a day''s receipts, to operators';
COMMENT ON COLUMN mails.organization_id IS 'the organization whose limit it counts against; NULL: none';
COMMENT ON COLUMN mails.subject_id IS 'the invitation or user it is about; NULL: not known yet';
COMMENT ON COLUMN mails.sealed IS 'recipient, subject and text, encrypted; erased when sent or given up';
COMMENT ON COLUMN mails.reason IS 'why the last attempt failed: a reason from heliograph/base/network/smtp.py, late or unreadable';
COMMENT ON COLUMN mails.attempts IS 'also the fencing token of the worker that sends it until due_at';

CREATE TABLE sessions (
    token_hash      bytea PRIMARY KEY CHECK (length(token_hash) = 32),
    id              uuid NOT NULL CONSTRAINT sessions_id UNIQUE,
    user_id         uuid NOT NULL CONSTRAINT sessions_user REFERENCES users ON DELETE CASCADE,
    organization_id uuid,
    created_at      timestamptz NOT NULL,
    seen_at         timestamptz NOT NULL,
    idle            interval NOT NULL,
    ends_at         timestamptz NOT NULL,
    proved_at       timestamptz NOT NULL,
    address         text NOT NULL,
    agent           text NOT NULL CHECK (length(agent) <= 300),
    reason          text CHECK (length(reason) <= 500)
);
CREATE INDEX sessions_of_user ON sessions (user_id, organization_id);
COMMENT ON TABLE sessions IS 'control: signed-in browsers; deleted when ended';
COMMENT ON COLUMN sessions.organization_id IS 'the organization being viewed; NULL: the person belongs to none';
COMMENT ON COLUMN sessions.idle IS 'it ends after this long without use, and at ends_at at the latest';
COMMENT ON COLUMN sessions.reason IS 'why an operator views the dashboard as the organization, read-only; NULL: a person signed in';
COMMENT ON COLUMN sessions.proved_at IS 'when the person last authenticated; dangerous actions require a recent time';

CREATE TABLE installation_settings (
    name   text PRIMARY KEY,
    value  text NOT NULL CHECK (length(value) BETWEEN 1 AND 500),
    set_at timestamptz NOT NULL
);
COMMENT ON TABLE installation_settings IS 'control: settings for the whole installation, made by operators; a missing row means empty (heliograph/accounts/installation.py)';

CREATE TABLE operators (
    user_id     uuid PRIMARY KEY CONSTRAINT operators_user REFERENCES users ON DELETE CASCADE,
    role        text NOT NULL,
    created_at  timestamptz NOT NULL,
    told_at     timestamptz,
    notice_ways text NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE operators IS 'control: people who run the installation, and their roles in the console';
COMMENT ON COLUMN operators.role IS 'a name of heliograph/people/operators/roles.py';
COMMENT ON COLUMN operators.told_at IS 'the operator has seen the notices of the console''s bell up to this time';
COMMENT ON COLUMN operators.notice_ways IS 'how the operator is notified, as JSON: kind -> ways, where they differ from heliograph/people/operators/noticing.py';

CREATE TABLE operator_tellings (
    cause   text PRIMARY KEY,
    told_at timestamptz NOT NULL
);
CREATE INDEX operator_tellings_age ON operator_tellings (told_at);
COMMENT ON TABLE operator_tellings IS 'control: when operators were last mailed about a cause, so that they are not told twice';
COMMENT ON COLUMN operator_tellings.cause IS 'state and name of a check that found a problem, or a fixed name for pending sender IDs';

CREATE TABLE operator_sessions (
    token_hash bytea PRIMARY KEY CHECK (length(token_hash) = 32),
    id         uuid NOT NULL CONSTRAINT operator_sessions_id UNIQUE,
    user_id    uuid NOT NULL CONSTRAINT operator_sessions_operator REFERENCES operators ON DELETE CASCADE,
    created_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL,
    ends_at    timestamptz NOT NULL,
    proved_at  timestamptz NOT NULL,
    address    text NOT NULL,
    agent      text NOT NULL CHECK (length(agent) <= 300)
);
CREATE INDEX operator_sessions_of_user ON operator_sessions (user_id);
COMMENT ON TABLE operator_sessions IS 'control: browsers signed in to the console; deleted when ended. Sessions of the dashboard are never valid here';

CREATE TABLE sign_in_tries (
    subject  bytea PRIMARY KEY CHECK (length(subject) = 16),
    tries    integer NOT NULL,
    tried_at timestamptz NOT NULL
);
COMMENT ON TABLE sign_in_tries IS 'control: failed sign-ins by account and by address, which delay the next try';
COMMENT ON COLUMN sign_in_tries.subject IS 'first 16 bytes of SHA-256 over `account` or `address` and its name, known or not';


-- -- Quota ------------------------------------------------------------------------------------------------------------

CREATE TABLE quotas (
    organization_id uuid PRIMARY KEY CONSTRAINT quotas_organization REFERENCES organizations,
    total           bigint NOT NULL DEFAULT 0,
    used            amount NOT NULL DEFAULT 0,
    resets_at       timestamptz,
    alert_above     positive_amount,
    is_limited      boolean NOT NULL DEFAULT false,
    CONSTRAINT quotas_not_overdrawn CHECK (used <= total)
) WITH (fillfactor = 50);
COMMENT ON TABLE quotas IS 'tenant: the maintained balance; its row lock also serializes an organization''s accepts';
COMMENT ON COLUMN quotas.is_limited IS 'whether spend_limits has rows of the organization: whoever has locked the balance need not look there';
COMMENT ON COLUMN quotas.alert_above IS 'messages per day (UTC) above which the bell rings; NULL: never';

CREATE TABLE spend_limits (
    organization_id uuid NOT NULL,
    key_id          uuid NOT NULL,
    segments        bigint NOT NULL CHECK (segments > 0),
    day             date NOT NULL,
    used            bigint NOT NULL DEFAULT 0,
    by_operator     boolean NOT NULL DEFAULT true,
    PRIMARY KEY (organization_id, key_id)
) WITH (fillfactor = 50);
COMMENT ON TABLE spend_limits IS 'tenant: segments of live SMS that may be accepted in a day (UTC), for organizations and keys with such a limit; written under the row lock of quotas';
COMMENT ON COLUMN spend_limits.key_id IS 'zeros: the whole organization';
COMMENT ON COLUMN spend_limits.by_operator IS 'the organization may not change it';
COMMENT ON COLUMN spend_limits.used IS 'on that day; on any other day nothing is used yet';

CREATE TABLE usage_ledger (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    type            text NOT NULL CHECK (type IN ('refund', 'adjustment', 'grant')),
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
-- A message is refunded once: finds its refund, and prevents a second one.
CREATE UNIQUE INDEX usage_ledger_refunds ON usage_ledger (organization_id, message_id) WHERE type = 'refund';
COMMENT ON TABLE usage_ledger IS 'tenant: changes of a quota not caused by messages; append-only. See usage_entries';

CREATE TABLE refunded_classes (
    class text PRIMARY KEY CHECK (class IN ('refused', 'undelivered', 'failed', 'expired', 'rejected', 'unknown'))
);
COMMENT ON TABLE refunded_classes IS 'reference: failure classes whose messages are refunded, besides those that were never handed over. See sms/refunds.py';

CREATE TABLE usage_months (
    organization_id uuid NOT NULL,
    month           date NOT NULL,
    source          text NOT NULL,
    messages        bigint NOT NULL,
    segments        bigint NOT NULL,
    balance_after   bigint NOT NULL,
    last_at         timestamptz,
    PRIMARY KEY (organization_id, month, source)
);
COMMENT ON TABLE usage_months IS 'tenant: an organization''s usage in a month, for messages that were dropped';
COMMENT ON COLUMN usage_months.source IS 'the partition of messages that was counted, whose sums are valid once it is in usage_closed; or `stray`: rows that were deleted one by one, valid at once';
COMMENT ON COLUMN usage_months.balance_after IS 'balance after the last of them';
COMMENT ON COLUMN usage_months.last_at IS 'when the last of them was accepted, for rows deleted one by one: others of the month may still exist';

CREATE TABLE usage_days (
    organization_id uuid NOT NULL,
    day             date NOT NULL,
    channel         text NOT NULL,
    country         text NOT NULL,
    sender          text NOT NULL,
    campaign_id     uuid NOT NULL,
    key_id          uuid NOT NULL,
    messages        bigint NOT NULL,
    segments        bigint NOT NULL,
    refunds         bigint NOT NULL,
    refunded        bigint NOT NULL,
    PRIMARY KEY (organization_id, day, channel, country, sender, campaign_id, key_id)
) WITH (fillfactor = 70);
COMMENT ON TABLE usage_days IS 'tenant: live messages by the day (UTC) of acceptance, and refunds by the day they were made; the source of bills. Excludes what traffic_deltas still holds';
COMMENT ON COLUMN usage_days.sender IS 'as in traffic';
COMMENT ON COLUMN usage_days.campaign_id IS 'zeros: none. The same for key_id: sent by a person, a campaign or the command line, or a refund';

CREATE TABLE usage_counts (
    organization_id uuid NOT NULL,
    month           date NOT NULL,
    channel         text NOT NULL,
    type            text NOT NULL CHECK (type IN ('usage', 'refund', 'adjustment', 'grant')),
    quantity        bigint NOT NULL,
    segments        bigint NOT NULL,
    PRIMARY KEY (organization_id, month, channel, type)
) WITH (fillfactor = 70);
COMMENT ON TABLE usage_counts IS 'tenant: the usage list by month (UTC), maintained with it and kept when its messages are gone. With traffic_deltas, the quantities of SMS add up to the remaining quota';
COMMENT ON COLUMN usage_counts.quantity IS 'signed, as in usage_entries';

CREATE TABLE billing_exports (
    month         date PRIMARY KEY CHECK (extract(day FROM month) = 1),
    locked_at     timestamptz NOT NULL DEFAULT now(),
    locked_by     text NOT NULL,
    organizations integer NOT NULL,
    lines         integer NOT NULL,
    sms           bigint NOT NULL,
    segments      bigint NOT NULL,
    whatsapp      bigint NOT NULL,
    refunds       bigint NOT NULL,
    adjustments   bigint NOT NULL,
    grants        bigint NOT NULL,
    checksum      text NOT NULL CHECK (checksum ~ '^([0-9a-f]{64})?$')
);
COMMENT ON TABLE billing_exports IS 'control: months whose bills were locked, for all organizations at once; kept forever';
COMMENT ON COLUMN billing_exports.checksum IS 'SHA-256 of the file, which is generated from billing_lines; empty only within the transaction that locks';

CREATE TABLE billing_lines (
    organization_id uuid NOT NULL,
    month           date NOT NULL,
    type            text COLLATE "C" NOT NULL CHECK (type IN ('usage', 'refund', 'adjustment', 'grant')),
    channel         text COLLATE "C" NOT NULL,
    country         text COLLATE "C" NOT NULL,
    sender          text COLLATE "C" NOT NULL,
    organization    text NOT NULL,
    quantity        bigint NOT NULL,
    segments        bigint NOT NULL,
    PRIMARY KEY (organization_id, month, type, channel, country, sender)
);
CREATE UNIQUE INDEX billing_lines_month ON billing_lines (month, organization_id, type, channel, country, sender);
COMMENT ON TABLE billing_lines IS 'tenant: lines of a locked month, written once with its row in billing_exports; kept forever';
COMMENT ON COLUMN billing_lines.organization IS 'its name when the month was locked';
COMMENT ON COLUMN billing_lines.sender IS 'for WhatsApp, the number; empty for adjustments and grants, like country';
COMMENT ON COLUMN billing_lines.quantity IS 'signed, as in usage_entries';

CREATE TABLE usage_closed (
    source    text PRIMARY KEY,
    closed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE usage_closed IS 'control: dropped partitions of messages, recorded in the commit that dropped them. From then on usage_months replaces their messages';


-- -- Contacts and consent ---------------------------------------------------------------------------------------------

-- The mode has a bounded length: with wider rows, PostgreSQL plans for an empty table as if each organization had one
-- row, and may then look up an id through the index on phones.
CREATE TABLE contacts (
    organization_id uuid NOT NULL,
    mode            varchar(4) NOT NULL DEFAULT 'live' CHECK (mode IN ('live', 'test')),
    id              uuid NOT NULL,
    name            text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    first_name      text CHECK (length(first_name) BETWEEN 1 AND 200),
    last_name       text CHECK (length(last_name) BETWEEN 1 AND 200),
    phone           text NOT NULL CHECK (phone ~ '^\+[1-9][0-9]{6,14}$'),
    tags            text[] NOT NULL DEFAULT '{}' CHECK (cardinality(tags) <= 50),
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    written_at      timestamptz,
    delivered_at    timestamptz,
    PRIMARY KEY (organization_id, mode, id)
);
-- The phone comes before the mode: a look-up by id must not be able to use this index.
CREATE UNIQUE INDEX contacts_phone ON contacts (organization_id, phone, mode);
COMMENT ON TABLE contacts IS 'tenant: people and their numbers, one contact per number and mode. Whether somebody opted out is read from opt_outs, never stored twice';
COMMENT ON COLUMN contacts.written_at IS 'when a message was last handed over to its number, to the hour, updated by a timer; NULL: never since the contact was created. delivered_at: when one was last delivered';
COMMENT ON COLUMN contacts.tags IS 'trimmed, lower case, distinct, in the order given; contact_tags is the inverse';

CREATE TABLE contact_readings (
    lag     interval PRIMARY KEY,
    read_to timestamptz NOT NULL
);
COMMENT ON TABLE contact_readings IS 'control: how far the timer that updates contacts.written_at has read messages, by when they were accepted or sent; one row for each lag with which it reads them';

CREATE TABLE contact_tags (
    organization_id uuid NOT NULL,
    mode            text NOT NULL DEFAULT 'live',
    tag             text NOT NULL,
    contact_id      uuid NOT NULL,
    PRIMARY KEY (organization_id, mode, tag, contact_id)
);
COMMENT ON TABLE contact_tags IS 'tenant: tag to contacts, written in the transaction that writes contacts.tags';

CREATE TABLE contact_notes (
    organization_id uuid NOT NULL,
    mode            text NOT NULL,
    contact_id      uuid NOT NULL,
    notes           text NOT NULL CHECK (length(notes) <= 2000),
    PRIMARY KEY (organization_id, mode, contact_id),
    CONSTRAINT contact_notes_contact FOREIGN KEY (organization_id, mode, contact_id)
        REFERENCES contacts ON DELETE CASCADE
);
COMMENT ON TABLE contact_notes IS 'tenant: an organization''s notes about a contact; never part of a message or of an exported list. Deleted with the contact';

CREATE TABLE contact_last_messages (
    organization_id uuid NOT NULL,
    mode            text NOT NULL,
    contact_id      uuid NOT NULL,
    message_id      uuid NOT NULL,
    PRIMARY KEY (organization_id, mode, contact_id),
    CONSTRAINT contact_last_messages_contact FOREIGN KEY (organization_id, mode, contact_id)
        REFERENCES contacts ON DELETE CASCADE
);
COMMENT ON TABLE contact_last_messages IS 'tenant: the message of contacts.written_at, which may no longer exist. Deleted with the contact';

CREATE TABLE contact_imports (
    organization_id uuid NOT NULL CONSTRAINT contact_imports_organization REFERENCES organizations,
    id              uuid NOT NULL,
    mode            text NOT NULL DEFAULT 'live' CHECK (mode IN ('live', 'test')),
    kind            text NOT NULL DEFAULT 'contacts' CHECK (kind IN ('contacts', 'opt_outs')),
    state           text NOT NULL DEFAULT 'running' CHECK (state IN ('uploading', 'reading', 'checking', 'checked', 'running',
                                                                     'stopped', 'finished', 'undoing', 'undone')),
    file            text NOT NULL,
    user_id         uuid,
    author          text,
    started_at      timestamptz NOT NULL,
    finished_at     timestamptz,
    undone_at       timestamptz,

    -- How the file is read and its rows are handled.
    is_uploaded     boolean NOT NULL DEFAULT false,
    size            bigint,
    encoding        text,
    delimiter       text,
    preamble        smallint NOT NULL DEFAULT 0,
    has_header      boolean NOT NULL DEFAULT true,
    columns         text NOT NULL DEFAULT '[]',
    fields          text NOT NULL DEFAULT '{}',
    country         text,
    tags            text[] NOT NULL DEFAULT '{}',
    on_duplicate    text NOT NULL DEFAULT 'update' CHECK (on_duplicate IN ('update', 'skip')),

    -- Results of the check, and progress.
    survey          text,
    position        bigint NOT NULL DEFAULT 0,
    resumed_at      timestamptz,
    resumed_from    integer NOT NULL DEFAULT 0,
    rows            integer NOT NULL DEFAULT 0,
    created         integer NOT NULL DEFAULT 0,
    updated         integer NOT NULL DEFAULT 0,
    unchanged       integer NOT NULL DEFAULT 0,
    rejected        integer NOT NULL DEFAULT 0,
    worker          uuid,
    lease_until     timestamptz,
    PRIMARY KEY (organization_id, id)
);
CREATE INDEX contact_imports_due ON contact_imports (organization_id, id)
    WHERE is_uploaded AND state IN ('checking', 'running', 'undoing');
COMMENT ON TABLE contact_imports IS 'tenant: imported files of contacts or opt-outs, kept as long as texts are, so that an import can be undone';
COMMENT ON COLUMN contact_imports.finished_at IS 'NULL: interrupted or still running';
COMMENT ON COLUMN contact_imports.is_uploaded IS 'a worker imports it from contact_import_chunks; otherwise the command line does, from a local file';
COMMENT ON COLUMN contact_imports.columns IS 'JSON: the header''s cells. fields: which of them hold the phone number, the name …';
COMMENT ON COLUMN contact_imports.survey IS 'JSON: what the import would do, once the whole file has been checked';
COMMENT ON COLUMN contact_imports.resumed_at IS 'when somebody last started it; resumed_from: from which row';
COMMENT ON COLUMN contact_imports.rows IS 'rows read so far; advances in the commit that writes their contacts';

CREATE TABLE contact_import_chunks (
    organization_id uuid NOT NULL,
    import_id       uuid NOT NULL,
    number          integer NOT NULL,
    bytes           bytea NOT NULL,
    PRIMARY KEY (organization_id, import_id, number)
);
COMMENT ON TABLE contact_import_chunks IS 'tenant: an uploaded file, so that any process can continue with it; deleted when its import ends, or after a week unless it is running';

CREATE TABLE contact_import_rejects (
    organization_id uuid NOT NULL,
    import_id       uuid NOT NULL,
    row             integer NOT NULL,
    reason          text NOT NULL,
    cells           text NOT NULL,
    PRIMARY KEY (organization_id, import_id, row)
);
COMMENT ON TABLE contact_import_rejects IS 'tenant: rows of an uploaded file that were not imported, kept for a week';
COMMENT ON COLUMN contact_import_rejects.cells IS 'JSON, as text: a cell may contain NUL';

CREATE TABLE contact_import_batches (
    organization_id uuid NOT NULL,
    import_id       uuid NOT NULL,
    batch           integer NOT NULL,
    written_at      timestamptz NOT NULL,
    created         uuid[] NOT NULL,
    people          uuid[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (organization_id, import_id, batch)
);
-- Ids do not compress: trying took 6 ms for a batch of 5,000.
ALTER TABLE contact_import_batches ALTER COLUMN created SET STORAGE EXTERNAL, ALTER COLUMN people SET STORAGE EXTERNAL;
COMMENT ON TABLE contact_import_batches IS 'tenant: contacts created by a batch of an import, and all that its rows name (people): a campaign''s possible audience';
COMMENT ON COLUMN contact_import_batches.written_at IS 'updated_at of all contacts it wrote: any with another value has changed since';

CREATE TABLE contact_import_images (
    organization_id uuid NOT NULL,
    import_id       uuid NOT NULL,
    batch           integer NOT NULL,
    contact_id      uuid NOT NULL,
    phone           text NOT NULL,
    name            text NOT NULL,
    first_name      text,
    last_name       text,
    tags            text[] NOT NULL,
    updated_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, import_id, batch, contact_id)
);
COMMENT ON TABLE contact_import_images IS 'tenant: contacts as they were before a batch of an import changed them';
COMMENT ON COLUMN contact_import_images.phone IS 'whose names these are, also once the contact is deleted or has another number';

CREATE TABLE contact_changes (
    organization_id uuid NOT NULL,
    mode            text NOT NULL CHECK (mode IN ('live', 'test')),
    change_id       uuid NOT NULL,
    contact_id      uuid NOT NULL,
    what            text NOT NULL CHECK (what IN ('deleted', 'tagged', 'untagged')),
    tag             text CHECK ((tag IS NULL) = (what = 'deleted')),
    name            text,
    first_name      text,
    last_name       text,
    phone           text,
    tags            text[],
    notes           text,
    created_at      timestamptz,
    updated_at      timestamptz,
    written_at      timestamptz,
    written_id      uuid,
    delivered_at    timestamptz,
    changed_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, mode, change_id, contact_id)
);
CREATE INDEX contact_changes_age ON contact_changes (changed_at);
COMMENT ON TABLE contact_changes IS 'tenant: changes to selected contacts, kept for an hour so that they can be undone';
COMMENT ON COLUMN contact_changes.name IS 'for a deleted contact, like the columns that follow';

CREATE TABLE tag_changes (
    organization_id uuid NOT NULL CONSTRAINT tag_changes_organization REFERENCES organizations,
    mode            text NOT NULL CHECK (mode IN ('live', 'test')),
    id              uuid NOT NULL,
    tag             text NOT NULL,
    becomes         text CHECK (becomes <> tag),
    contacts        integer NOT NULL DEFAULT 0,
    finished_at     timestamptz,
    PRIMARY KEY (organization_id, mode, id)
);
CREATE INDEX tag_changes_open ON tag_changes (organization_id, mode, id) WHERE finished_at IS NULL;
COMMENT ON TABLE tag_changes IS 'tenant: tags being renamed, merged or removed, contact by contact';
COMMENT ON COLUMN tag_changes.becomes IS 'the tag that replaces it; NULL: none';
COMMENT ON COLUMN tag_changes.contacts IS 'number of contacts changed so far';

-- Consent is kept by person, not by spelling: `person_of` is the key shared by all spellings of a number, and
-- person_names links further numbers and user ids of one person. The function is the twin of `phones.person`, and a
-- test compares them; it is defined here, not beside the Python, because columns are generated by it: changing the rule
-- takes a migration that recomputes those columns.
--
-- Most numbers have one spelling. The others are left to a function that is not inlined into statements (PL/pgSQL is
-- not): each statement would set up every expression in it, whatever the numbers.
-- Its schema is named, since a dump is restored with an empty search path.
CREATE FUNCTION person_respelled(p_address text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN CASE left(p_address, 3)
           WHEN '+55' THEN regexp_replace(regexp_replace(p_address,
                               '^\+550([1-9][0-9]{6,})$', '+55\1'),
                               '^(\+55[0-9]{2})9([6-9][0-9]{7})$', '\1\2')
           WHEN '+52' THEN regexp_replace(p_address, '^\+521([0-9]{10})$', '+52\1')
           WHEN '+22' THEN regexp_replace(regexp_replace(regexp_replace(regexp_replace(p_address,
                               '^\+229([0-9]{8})$', '+22901\1'),
                               '^\+225([0457][0-3][0-9]{6})$', '+22501\1'),
                               '^\+225([04-9][4-6][0-9]{6})$', '+22505\1'),
                               '^\+225([04-9][7-9][0-9]{6})$', '+22507\1')
           WHEN '+54' THEN regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(p_address,
                               '^\+540([1-9][0-9]{6,})$', '+54\1'),
                               '^\+549([0-9]{10})$', '+54\1'),
                               '^\+541115([0-9]{8})$', '+5411\1'),
                               '^\+54([0-9]{3})15([0-9]{7})$', '+54\1\2'),
                               '^\+54([0-9]{4})15([0-9]{6})$', '+54\1\2')
           ELSE CASE WHEN strpos(substr(p_address, 4, 2), '0') > 0 THEN regexp_replace(p_address,
                               '^\+(20|27|31|32|33|40|41|43|44|46|49|51|53|54|55|57|58|60|61|62|63|64|66|81|82|84|86|90'
                               '|91|92|93|94|95|98|211|212|213|218|231|232|233|234|243|249|250|251|252|254|255|256'
                               '|260|261|262|263|264|265|291|353|355|358|359|370|373|374|377|380|381|382|383|385|386'
                               '|387|389|421|423|508|590|591|593|594|595|596|598|686|850|855|856|880|886|961|962|963'
                               '|964|966|967|970|971|972|976|977|994|995|996)0([1-9][0-9]{6,})$',
                               '+\1\2')
                ELSE p_address END END;
END $$;
COMMENT ON FUNCTION person_respelled(text) IS 'part of person_of: the key of a number that may be a second spelling';

CREATE FUNCTION person_of(p_address text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN left(p_address, 3) IN ('+55', '+52', '+22', '+54') OR strpos(substr(p_address, 4, 2), '0') > 0
                THEN public.person_respelled(p_address) ELSE p_address END
$$;
COMMENT ON FUNCTION person_of(text) IS 'the key that all spellings of a phone number share, never dialed; a user id is its own key';

CREATE TABLE opt_outs (
    organization_id uuid NOT NULL,
    recipient       text NOT NULL,
    since           timestamptz NOT NULL,
    source          text NOT NULL,
    keyword         text,
    message_id      uuid,
    import_id       uuid,
    person          text NOT NULL GENERATED ALWAYS AS (person_of(recipient)) STORED,
    PRIMARY KEY (organization_id, person)
);
-- Only lists have this predicate, so no look-up can choose this index by mistake. IS NOT NULL would not do: for a
-- column declared NOT NULL, PostgreSQL drops it from queries and then cannot prove it.
CREATE INDEX opt_outs_newest ON opt_outs (organization_id, since, person) WHERE source <> '';
COMMENT ON TABLE opt_outs IS 'tenant: recipients who opted out. Checked for every message';
COMMENT ON COLUMN opt_outs.person IS 'the key for look-ups: see person_of';
COMMENT ON COLUMN opt_outs.recipient IS 'as written at the opt-out: E.164 with +, or a user id';
COMMENT ON COLUMN opt_outs.source IS 'keyword (they wrote it), operator, organization, or supplier (they wrote it to the supplier, which has refused their messages since)';
COMMENT ON COLUMN opt_outs.message_id IS 'the message in received_messages that requested it';
COMMENT ON COLUMN opt_outs.import_id IS 'the file it came from, so that undoing the import only removes its own';

CREATE TABLE consent_history (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    recipient       text NOT NULL,
    said            text NOT NULL CHECK (said IN ('out', 'in')),
    at              timestamptz NOT NULL,
    source          text NOT NULL,
    keyword         text,
    message_id      uuid,
    import_id       uuid,
    author_kind     text,
    author_id       uuid,
    author          text,
    ended_at        timestamptz CHECK (ended_at IS NULL OR said = 'out'),
    person          text NOT NULL GENERATED ALWAYS AS (person_of(recipient)) STORED,
    PRIMARY KEY (organization_id, person, id)
);
CREATE INDEX consent_history_import ON consent_history (organization_id, import_id, person) WHERE import_id IS NOT NULL;
COMMENT ON TABLE consent_history IS 'tenant: each opt-out and opt-in, even those that changed nothing; kept until the person is erased, because it shows why somebody was messaged or not';
COMMENT ON COLUMN consent_history.author_kind IS 'who recorded it for the person; NULL: they wrote it themselves';
COMMENT ON COLUMN consent_history.ended_at IS 'until when an opt-out was in force; NULL: it still is. The person has an opt_outs row while any is in force';

CREATE TABLE person_names (
    organization_id uuid NOT NULL,
    name            text NOT NULL,
    person          uuid NOT NULL,
    linked_at       timestamptz NOT NULL DEFAULT now(),
    left_at         timestamptz,
    moved_to        text,
    PRIMARY KEY (organization_id, name),
    CHECK ((left_at IS NULL) = (moved_to IS NULL))
);
CREATE INDEX person_names_by_person ON person_names (organization_id, person) WHERE person IS NOT NULL;
COMMENT ON TABLE person_names IS 'tenant: names (keys of numbers, user ids) that Meta attributes to one person; people with a single name are not listed, unless a number changed hands';
COMMENT ON COLUMN person_names.left_at IS 'when, according to Meta, the person moved from this number to the one in moved_to (a user id: to one that is not known); nobody else has used it since. NULL: it is theirs';

CREATE TABLE former_names (
    organization_id uuid NOT NULL,
    name            text NOT NULL,
    person          uuid NOT NULL,
    left_at         timestamptz NOT NULL,
    moved_to        text NOT NULL,
    taken_at        timestamptz NOT NULL CHECK (taken_at >= left_at),
    PRIMARY KEY (organization_id, name, left_at)
);
CREATE INDEX former_names_by_person ON former_names (organization_id, person);
COMMENT ON TABLE former_names IS 'tenant: former numbers of people that now belong to somebody else, one row for each former owner; person is that of person_names';
COMMENT ON COLUMN former_names.left_at IS 'when, according to Meta, the person moved from it to the number in moved_to (a user id: to one that is not known)';
COMMENT ON COLUMN former_names.taken_at IS 'since when it has belonged to the next owner: from their first message, as far as is known';


-- -- Campaigns --------------------------------------------------------------------------------------------------------
-- One text or template for many recipients, staged into messages chunk by chunk. The counts of a campaign are disjoint
-- and add up to its total at every commit. They are updated by differences: a chunk keeps the last counts of its own
-- messages, whose ids are in one range.

CREATE TABLE campaigns (
    organization_id         uuid NOT NULL CONSTRAINT campaigns_organization REFERENCES organizations,
    id                      uuid NOT NULL,
    channel                 text NOT NULL DEFAULT 'sms' CHECK (channel IN ('sms', 'whatsapp')),
    mode                    text NOT NULL CHECK (mode IN ('live', 'test')),
    name                    text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    status                  text NOT NULL CHECK (status IN ('scheduled', 'staging', 'running', 'paused', 'completed',
                                                            'canceled', 'failed')),
    status_reason           text,
    request_id              text NOT NULL,
    created_at              timestamptz NOT NULL,
    scheduled_at            timestamptz,
    started_at              timestamptz,
    completed_at            timestamptz,

    -- Who created it, and who else approved it.
    author_kind             text,
    author_id               uuid,
    approved_at             timestamptz,
    approved_by             uuid,
    approver                text,
    approved_for            integer,

    -- Content: a text for SMS, a template for WhatsApp.
    message_template        text,
    class                   text CHECK (class IN ('otp', 'transactional', 'marketing')),
    sender_id               uuid,
    number_id               uuid,
    template_id             uuid,
    template_name           text,
    template_language       text,
    parameters              jsonb,
    with_names              boolean NOT NULL DEFAULT true,

    -- Audience and pace.
    audience_tags           text[],
    audience_import         uuid,
    audience_tag_match_mode text NOT NULL CHECK (audience_tag_match_mode IN ('any', 'all')),
    excluded_tags           text[] NOT NULL DEFAULT '{}',
    not_written_days        smallint CHECK (not_written_days BETWEEN 1 AND 365),
    again_of                uuid,
    messages_per_minute     integer CHECK (messages_per_minute > 0),

    -- Counts of messages.
    total                   integer NOT NULL DEFAULT 0,
    pending                 integer NOT NULL DEFAULT 0 CHECK (pending >= 0),
    queued                  integer NOT NULL DEFAULT 0 CHECK (queued >= 0),
    sent                    integer NOT NULL DEFAULT 0 CHECK (sent >= 0),
    delivered               integer NOT NULL DEFAULT 0 CHECK (delivered >= 0),
    read                    integer NOT NULL DEFAULT 0 CHECK (read >= 0),
    failed                  integer NOT NULL DEFAULT 0 CHECK (failed >= 0),
    never_sent              integer NOT NULL DEFAULT 0 CHECK (never_sent BETWEEN 0 AND failed),
    unknown                 integer NOT NULL DEFAULT 0 CHECK (unknown >= 0),
    canceled                integer NOT NULL DEFAULT 0 CHECK (canceled >= 0),
    opted_out               integer NOT NULL DEFAULT 0 CHECK (opted_out >= 0),
    recently_written        integer NOT NULL DEFAULT 0 CHECK (recently_written >= 0),
    invalid                 integer NOT NULL DEFAULT 0 CHECK (invalid >= 0),

    -- The worker's progress.
    step_at                 timestamptz,
    gather_tag              smallint NOT NULL DEFAULT 0,
    gather_after            uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    staged_to               text COLLATE "C" NOT NULL DEFAULT '',
    due_at                  timestamptz,
    drained_at              timestamptz,
    stalled_at              timestamptz,
    forgotten               boolean NOT NULL DEFAULT false,

    PRIMARY KEY (organization_id, id),
    CONSTRAINT campaigns_total CHECK (
        total = pending + queued + sent + delivered + read + failed + unknown + canceled + opted_out
              + recently_written + invalid),
    CONSTRAINT campaigns_content CHECK (
        CASE channel
            WHEN 'sms' THEN num_nonnulls(message_template, sender_id) = 2
                 AND num_nulls(number_id, template_id, template_name, template_language, parameters) = 5
            ELSE num_nulls(message_template, sender_id) = 2
                 AND num_nonnulls(number_id, template_id, template_name, template_language, parameters) = 5
        END),
    CONSTRAINT campaigns_completed CHECK ((status = 'completed') = (completed_at IS NOT NULL)),
    CONSTRAINT campaigns_nothing_left CHECK (status <> 'completed' OR (pending = 0 AND queued = 0))
) WITH (fillfactor = 50);
CREATE INDEX campaigns_step ON campaigns (organization_id, step_at) WHERE step_at IS NOT NULL;
CREATE INDEX campaigns_forget ON campaigns (organization_id, id)
    WHERE NOT forgotten AND status IN ('completed', 'canceled', 'failed');
CREATE INDEX campaigns_under_way ON campaigns (organization_id, mode) WHERE status IN ('staging', 'running', 'paused');
CREATE INDEX campaigns_stalled ON campaigns (stalled_at) WHERE stalled_at IS NOT NULL;
CREATE INDEX campaigns_again ON campaigns (organization_id, again_of) WHERE again_of IS NOT NULL;
CREATE INDEX campaigns_by_channel ON campaigns (organization_id, channel, id) WHERE channel IS NOT NULL;
COMMENT ON TABLE campaigns IS 'tenant: one text or template for many recipients, with maintained counts';
COMMENT ON COLUMN campaigns.class IS 'traffic class of its messages; NULL: marketing, or it is WhatsApp';
COMMENT ON COLUMN campaigns.parameters IS 'source of the value of each template parameter';
COMMENT ON COLUMN campaigns.with_names IS 'its messages need the recipient''s names besides the number';
COMMENT ON COLUMN campaigns.audience_tags IS 'NULL: the recipients were listed, or come from audience_import';
COMMENT ON COLUMN campaigns.excluded_tags IS 'contacts with any of these are not recipients; empty for listed recipients';
COMMENT ON COLUMN campaigns.not_written_days IS 'contacts who got a message within this many days are skipped; NULL: none are';
COMMENT ON COLUMN campaigns.again_of IS 'the campaign that its recipients did not get, if they were listed as such; they are not listed again';
COMMENT ON COLUMN campaigns.read IS 'delivered and read; delivered counts those that were not read';
COMMENT ON COLUMN campaigns.stalled_at IS 'since when it has been paused by what nobody asked for, such as a used up quota; NULL: it is not';
COMMENT ON COLUMN campaigns.step_at IS 'when a worker next has work to do for it; NULL: never';
COMMENT ON COLUMN campaigns.staged_to IS 'the last recipient staged or skipped; advances in the same commit';
COMMENT ON COLUMN campaigns.due_at IS 'when the next message is due, under messages_per_minute';
COMMENT ON COLUMN campaigns.drained_at IS 'since when nothing has been waiting to be sent';
COMMENT ON COLUMN campaigns.forgotten IS 'its recipients were deleted after it ended';

CREATE TABLE campaign_recipients (
    organization_id uuid NOT NULL,
    campaign_id     uuid NOT NULL,
    phone           text COLLATE "C" NOT NULL,
    name            text,
    first_name      text,
    last_name       text,
    PRIMARY KEY (organization_id, campaign_id, phone)
);
-- Where two spellings of a number are in use, and phones.normalize cannot know which one is dialed.
CREATE UNIQUE INDEX campaign_recipients_person ON campaign_recipients (organization_id, campaign_id, person_of(phone))
    WHERE left(phone, 3) IN ('+54', '+55');
COMMENT ON TABLE campaign_recipients IS 'tenant: the audience when the campaign started, each person once, with the contact''s values that the text needs; deleted after the campaign ends';
COMMENT ON COLUMN campaign_recipients.phone IS 'sorted bytewise: the cursor''s order must not depend on a locale';

CREATE TABLE campaign_skipped (
    organization_id uuid NOT NULL,
    campaign_id     uuid NOT NULL,
    reason          text NOT NULL,
    id              uuid NOT NULL,
    recipient       text NOT NULL,
    PRIMARY KEY (organization_id, campaign_id, reason, id)
);
CREATE INDEX campaign_skipped_of_recipient ON campaign_skipped (organization_id, recipient);
-- Listed texts that are not phone numbers: erasure and disclosure compare each of them with a number.
CREATE INDEX campaign_skipped_typed ON campaign_skipped (organization_id, id) WHERE reason = 'no_number';
CREATE INDEX campaign_skipped_age ON campaign_skipped USING brin (id) WITH (autosummarize = on);
COMMENT ON TABLE campaign_skipped IS 'tenant: recipients that campaigns skipped, each with its reason; kept as long as messages';
COMMENT ON COLUMN campaign_skipped.recipient IS 'a number, or the text listed as one';

CREATE TABLE campaign_chunks (
    organization_id uuid NOT NULL,
    campaign_id     uuid NOT NULL,
    first_id        uuid NOT NULL,
    last_id         uuid NOT NULL,
    queued          integer NOT NULL,
    sent            integer NOT NULL DEFAULT 0,
    delivered       integer NOT NULL DEFAULT 0,
    read            integer NOT NULL DEFAULT 0,
    failed          integer NOT NULL DEFAULT 0,
    never_sent      integer NOT NULL DEFAULT 0,
    unknown         integer NOT NULL DEFAULT 0,
    canceled        integer NOT NULL DEFAULT 0,
    withdrawn       boolean NOT NULL DEFAULT false,
    put_off_at      timestamptz,
    staged_at       timestamptz NOT NULL,
    changed_at      timestamptz NOT NULL,
    count_at        timestamptz NOT NULL,
    PRIMARY KEY (organization_id, campaign_id, first_id)
) WITH (fillfactor = 70);
CREATE INDEX campaign_chunks_due ON campaign_chunks (count_at);
CREATE INDEX campaign_chunks_put_off ON campaign_chunks (organization_id, campaign_id, first_id) WHERE put_off_at IS NOT NULL;
COMMENT ON TABLE campaign_chunks IS 'tenant: messages staged together and their last counts, until these can no longer change';
COMMENT ON COLUMN campaign_chunks.never_sent IS 'of those failed: no supplier can have the message, not even in part';
COMMENT ON COLUMN campaign_chunks.put_off_at IS 'since when its unsent messages have been waiting for the campaign to be resumed';
COMMENT ON COLUMN campaign_chunks.withdrawn IS 'the campaign was canceled, and with it the unsent messages of this chunk';

-- A campaign's progress, for its chart.
CREATE TABLE campaign_minutes (
    organization_id uuid NOT NULL,
    campaign_id     uuid NOT NULL,
    minute          timestamptz NOT NULL,
    sent            integer NOT NULL,
    delivered       integer NOT NULL,
    never_sent      integer NOT NULL DEFAULT 0,
    PRIMARY KEY (organization_id, campaign_id, minute)
);
CREATE INDEX campaign_minutes_age ON campaign_minutes USING brin (minute) WITH (autosummarize = on);
COMMENT ON TABLE campaign_minutes IS 'tenant: messages of a campaign that were handed over and delivered, by the minute in which they were counted; kept for 90 days';
COMMENT ON COLUMN campaign_minutes.sent IS 'handed over, whatever the outcome; a difference, so one minute may subtract what another counted';
COMMENT ON COLUMN campaign_minutes.never_sent IS 'failed, and no supplier can have the message';

CREATE TABLE campaign_drafts (
    organization_id uuid NOT NULL CONSTRAINT campaign_drafts_organization REFERENCES organizations,
    mode            text NOT NULL CHECK (mode IN ('live', 'test')),
    id              uuid NOT NULL,
    author          text NOT NULL,
    user_id         uuid,
    fields          text NOT NULL,
    numbers         text[] NOT NULL,
    saved_at        timestamptz NOT NULL,
    discarded_at    timestamptz,
    PRIMARY KEY (organization_id, mode, id)
);
CREATE INDEX campaign_drafts_age ON campaign_drafts (saved_at);
CREATE INDEX campaign_drafts_discarded ON campaign_drafts (discarded_at) WHERE discarded_at IS NOT NULL;
COMMENT ON TABLE campaign_drafts IS 'tenant: forms for campaigns not created yet, as typed; erased after 30 days without a change, and an hour after they were discarded';
COMMENT ON COLUMN campaign_drafts.user_id IS 'whose name author is: colleagues may share one';
COMMENT ON COLUMN campaign_drafts.fields IS 'JSON: what was typed, by field; its text is sealed if the organization seals its texts';
COMMENT ON COLUMN campaign_drafts.numbers IS 'listed recipients: E.164 if they are phone numbers, otherwise as typed';


-- -- Suppliers --------------------------------------------------------------------------------------------------------

CREATE TABLE suppliers (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    kind       text NOT NULL,
    state      text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'draining', 'paused', 'removed')),
    simulated  boolean NOT NULL DEFAULT false,
    settings   jsonb NOT NULL,
    secret     bytea NOT NULL,
    old_secrets       bytea[] NOT NULL DEFAULT '{}',
    old_secrets_until timestamptz[] NOT NULL DEFAULT '{}',
    sessions   smallint NOT NULL DEFAULT 1 CHECK (sessions > 0),
    parts      text NOT NULL DEFAULT 'all' CHECK (parts IN ('all', 'any', 'first', 'last')),
    prefixes   text[] NOT NULL DEFAULT '{}',
    priority   smallint NOT NULL DEFAULT 10,
    weight     smallint NOT NULL DEFAULT 1 CHECK (weight > 0),
    trial      jsonb,
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX suppliers_name ON suppliers (lower(name));
COMMENT ON TABLE suppliers IS 'reference: accounts that carry messages. kind: see suppliers/kinds.py; secret and old_secrets are sealed; prefixes: E.164 digits, empty for all';
COMMENT ON COLUMN suppliers.old_secrets IS 'replaced secrets of a supplier over HTTP, newest first, with which its callbacks may still be signed until old_secrets_until';
COMMENT ON COLUMN suppliers.state IS 'draining: it is given no more messages, but keeps its sessions for answers and receipts; paused: it has no sessions';
COMMENT ON COLUMN suppliers.simulated IS 'a simulator: carries live messages only while there is no other supplier';
COMMENT ON COLUMN suppliers.trial IS 'progress of the last test message, with its number masked; NULL: there was none';
COMMENT ON COLUMN suppliers.parts IS 'which parts'' receipts decide the status of a message of several parts';

CREATE TABLE supplier_drafts (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    kind       text NOT NULL,
    settings   jsonb NOT NULL,
    secret     bytea NOT NULL DEFAULT '',
    place      jsonb NOT NULL,
    steps      jsonb NOT NULL DEFAULT '[]',
    trial      jsonb,
    changed_at timestamptz NOT NULL
);
COMMENT ON TABLE supplier_drafts IS 'control: suppliers being added; nothing is sent through one until it is finished. Deleted then, or after thirty days without a change. secret is sealed; trial has its number masked';
COMMENT ON COLUMN supplier_drafts.place IS 'columns of the supplier other than its settings; steps and trial: results of testing it';

CREATE TABLE sender_rules (
    id          uuid PRIMARY KEY,
    supplier_id uuid NOT NULL CONSTRAINT sender_rules_supplier REFERENCES suppliers,
    country     text,
    sender      text,
    kind        text CHECK (kind IN ('alphanumeric', 'numeric')),
    action      text NOT NULL CHECK (action IN ('allow', 'replace', 'refuse', 'register')),
    replacement text,
    note        text NOT NULL DEFAULT '',
    changed_at  timestamptz NOT NULL,
    CONSTRAINT sender_rules_replacement CHECK (CASE action WHEN 'replace' THEN replacement IS NOT NULL
                                                           WHEN 'register' THEN true ELSE replacement IS NULL END)
);
CREATE UNIQUE INDEX sender_rules_place
    ON sender_rules (supplier_id, coalesce(country, ''), coalesce(lower(sender), ''), coalesce(kind, ''));
COMMENT ON TABLE sender_rules IS 'reference: what a supplier does with senders; the most specific rule decides. See senders/book.py';
COMMENT ON COLUMN sender_rules.country IS 'ISO region of the calling code; NULL: everywhere. sender and kind likewise';
COMMENT ON COLUMN sender_rules.replacement IS 'sent instead; for the action register, while the sender is not registered (NULL: refused)';

CREATE TABLE number_rules (
    id          uuid PRIMARY KEY,
    supplier_id uuid NOT NULL CONSTRAINT number_rules_supplier REFERENCES suppliers,
    prefix      text NOT NULL DEFAULT '' CHECK (prefix ~ '^([1-9][0-9]{0,14})?$'),
    strip       text NOT NULL DEFAULT '',
    prepend     text NOT NULL DEFAULT '',
    ton         smallint,
    npi         smallint,
    sender_ton  smallint,
    sender_npi  smallint,
    note        text NOT NULL DEFAULT '',
    changed_at  timestamptz NOT NULL,
    CONSTRAINT number_rules_place UNIQUE (supplier_id, prefix),
    CONSTRAINT number_rules_numbering CHECK (num_nulls(ton, npi) <> 1 AND num_nulls(sender_ton, sender_npi) <> 1)
);
COMMENT ON TABLE number_rules IS 'reference: how a supplier wants numbers written that begin with prefix; the longest prefix applies';

CREATE TABLE sender_owners (
    sender      text NOT NULL,
    supplier_id uuid NOT NULL,
    seen_at     timestamptz NOT NULL,
    PRIMARY KEY (sender, supplier_id)
);
COMMENT ON TABLE sender_owners IS 'reference: our numbers (digits) and the suppliers through which messages to them arrived within 90 days';

CREATE TABLE sender_book (
    is_only    boolean PRIMARY KEY CHECK (is_only),
    version    bigint NOT NULL,
    numbers_at timestamptz
);
COMMENT ON TABLE sender_book IS 'control: one row, updated by each change of sender_rules, number_rules, sender_registrations and sender_owners';
COMMENT ON COLUMN sender_book.numbers_at IS 'last change of number_rules, removals included; NULL: none yet';

CREATE TABLE routes (
    id              uuid PRIMARY KEY,
    name            text NOT NULL,
    state           text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused')),
    prefix          text CHECK (prefix ~ '^[1-9][0-9]{0,14}$'),
    country         text,
    network         text CHECK (network ~ '^[0-9]{3}-[0-9]{2,3}$'),
    organization_id uuid CONSTRAINT routes_organization REFERENCES organizations,
    sender          text,
    class           text CHECK (class IN ('otp', 'transactional', 'marketing')),
    priority        smallint NOT NULL DEFAULT 10,
    adaptive        boolean NOT NULL DEFAULT false,
    rated           boolean NOT NULL DEFAULT false,
    note            text NOT NULL DEFAULT '',
    created_at      timestamptz NOT NULL,
    changed_at      timestamptz NOT NULL,
    CONSTRAINT routes_destination CHECK (num_nonnulls(prefix, country, network) <= 1)
);
CREATE UNIQUE INDEX routes_name ON routes (lower(name));
COMMENT ON TABLE routes IS 'reference: which messages go to which suppliers; if none matches, the suppliers'' own settings decide';
COMMENT ON COLUMN routes.prefix IS 'E.164 digits. Either this, a country (ISO region), a network (MCC-MNC), or none of them: anywhere';
COMMENT ON COLUMN routes.organization_id IS 'only messages of this organization; sender and class likewise';
COMMENT ON COLUMN routes.adaptive IS 'measured quality and prices may reorder its suppliers';
COMMENT ON COLUMN routes.rated IS 'only suppliers whose rate card has a price for the number are used';
COMMENT ON COLUMN routes.changed_at IS 'also set when its suppliers change: workers then reload all routes';

CREATE TABLE route_suppliers (
    route_id    uuid NOT NULL CONSTRAINT route_suppliers_route REFERENCES routes,
    supplier_id uuid NOT NULL CONSTRAINT route_suppliers_supplier REFERENCES suppliers,
    priority    smallint NOT NULL DEFAULT 10,
    weight      smallint NOT NULL DEFAULT 1 CHECK (weight > 0),
    points      smallint CHECK (points BETWEEN 1 AND 100),
    streak      smallint NOT NULL DEFAULT 0,
    reason      text NOT NULL DEFAULT '',
    degraded    boolean NOT NULL DEFAULT false,
    outside     boolean NOT NULL DEFAULT false,
    place       smallint NOT NULL DEFAULT 0,
    networks    jsonb NOT NULL DEFAULT '{}',
    seen        jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (route_id, supplier_id)
);
COMMENT ON TABLE route_suppliers IS 'reference: suppliers of a route: by priority, and by weight among equal priorities';
COMMENT ON COLUMN route_suppliers.points IS 'its share of an adaptive route, out of a hundred, in place of priority and weight; NULL: not measured yet';
COMMENT ON COLUMN route_suppliers.streak IS 'consecutive evaluations in which it was better than the supplier with the most points';
COMMENT ON COLUMN route_suppliers.reason IS 'result of the last evaluation, for operators: a sentence with its values, as JSON';
COMMENT ON COLUMN route_suppliers.degraded IS 'at the last evaluation no supplier of the route was within the bounds of its class';
COMMENT ON COLUMN route_suppliers.outside IS 'at the last evaluation it was not within the bounds of the route''s class';
COMMENT ON COLUMN route_suppliers.place IS 'its rank among those that replace an unavailable supplier; all 0: none was evaluated';
COMMENT ON COLUMN route_suppliers.networks IS 'networks of the route''s country in which it has another share: {MCC-MNC: [points, [degraded, outside, place]]}';
COMMENT ON COLUMN route_suppliers.seen IS 'for those networks: {MCC-MNC: [streak, reason]}';

CREATE TABLE route_decisions (
    id      bigint PRIMARY KEY,
    said    text NOT NULL,
    used_on date NOT NULL
);
COMMENT ON TABLE route_decisions IS 'control: reasons for choosing a supplier, each stored once; queue and attempts refer to them. said: a sentence with its values, as JSON; id: its digest; used_on: the last day on which an attempt referred to it';

CREATE TABLE supplier_sessions (
    supplier_id uuid NOT NULL CONSTRAINT supplier_sessions_supplier REFERENCES suppliers,
    slot        smallint NOT NULL,
    worker_id   uuid NOT NULL,
    lease_until timestamptz NOT NULL,
    bound       boolean NOT NULL DEFAULT false,
    ready       boolean NOT NULL DEFAULT false,
    moves       boolean NOT NULL DEFAULT false,
    detail      text NOT NULL DEFAULT '',
    bound_at    timestamptz,
    in_flight   integer NOT NULL DEFAULT 0,
    rate        float8 NOT NULL DEFAULT 0,
    wire        text NOT NULL DEFAULT '',
    receives    boolean NOT NULL DEFAULT true,
    PRIMARY KEY (supplier_id, slot)
);
COMMENT ON TABLE supplier_sessions IS 'control: which worker may open which of an account''s sessions';
COMMENT ON COLUMN supplier_sessions.ready IS 'its worker has bound it and the circuit is closed: other workers leave messages to it';
COMMENT ON COLUMN supplier_sessions.in_flight IS 'its worker''s submits to the account that wait for a response, in the row of its first slot; as last reported';
COMMENT ON COLUMN supplier_sessions.rate IS 'segments per second that its worker handed over in the last seconds, in the row of its first slot';
COMMENT ON COLUMN supplier_sessions.wire IS 'names and times of the session''s last PDUs, and its open submits, as JSON; empty: it is not bound, or has none of its own';
COMMENT ON COLUMN supplier_sessions.receives IS 'false: it submits, but nothing arrives, since its receiver is not bound';
COMMENT ON COLUMN supplier_sessions.detail IS 'how its worker''s last session ended: a sentence with its values, as JSON';
COMMENT ON COLUMN supplier_sessions.moves IS 'the account has accepted or refused a message of this worker in the last seconds: it is not stalled';

CREATE TABLE supplier_health (
    supplier_id  uuid PRIMARY KEY CONSTRAINT supplier_health_supplier REFERENCES suppliers,
    opened_at    timestamptz,
    opened_by    uuid,
    probe_at     timestamptz,
    probed_by    uuid,
    closed_by    uuid,
    throttled_at timestamptz,
    throttled_by uuid,
    paused_until timestamptz,
    receipt_at   timestamptz
);
COMMENT ON TABLE supplier_health IS 'control: what workers share about a supplier, at most one row each: that its circuit is open, that it throttles, and when it last sent receipts. The ids are those of workers';
COMMENT ON COLUMN supplier_health.opened_at IS 'since when its circuit has been open for all workers; NULL: closed. A later change of the supplier closes it';
COMMENT ON COLUMN supplier_health.receipt_at IS 'when it last sent receipts, to within seconds; NULL: never';
COMMENT ON COLUMN supplier_health.probe_at IS 'from then on one worker may send a message to probe it';

CREATE TABLE supplier_circuits (
    supplier_id uuid NOT NULL CONSTRAINT supplier_circuits_supplier REFERENCES suppliers,
    opened_at   timestamptz NOT NULL,
    closed_at   timestamptz,
    PRIMARY KEY (supplier_id, opened_at)
);
CREATE INDEX supplier_circuits_age ON supplier_circuits (opened_at);
COMMENT ON TABLE supplier_circuits IS 'control: when a supplier''s circuit was open for all workers, for its charts';
COMMENT ON COLUMN supplier_circuits.closed_at IS 'when a probe closed it; NULL: it is open, or was closed by a change of the supplier';

CREATE TABLE supplier_watches (
    supplier_id uuid PRIMARY KEY CONSTRAINT supplier_watches_supplier REFERENCES suppliers,
    until       timestamptz NOT NULL
);
COMMENT ON TABLE supplier_watches IS 'control: until when an operator watches a supplier''s wire, at most one row each; workers read it in their query of every second';

CREATE TABLE supplier_hours (
    supplier_id uuid NOT NULL CONSTRAINT supplier_hours_supplier REFERENCES suppliers,
    hour        timestamptz NOT NULL,
    in_flight   bigint NOT NULL,
    room        bigint NOT NULL,
    answers     bigint[] NOT NULL,
    PRIMARY KEY (supplier_id, hour)
);
COMMENT ON TABLE supplier_hours IS 'control: how full a supplier''s window was and how long its responses took, by hour, as sampled by workers every second';
COMMENT ON COLUMN supplier_hours.in_flight IS 'submits without a response, summed over all samples; room: the capacity, likewise';
COMMENT ON COLUMN supplier_hours.answers IS 'number of responses by how long they took, in the buckets of base/histogram.py; for those read together, only the first is counted';

CREATE TABLE supplier_pdus (
    supplier_id uuid NOT NULL CONSTRAINT supplier_pdus_supplier REFERENCES suppliers,
    id          uuid NOT NULL,
    at          timestamptz NOT NULL,
    is_sent     boolean NOT NULL,
    command     text NOT NULL,
    sequence    bigint NOT NULL,
    status      text NOT NULL,
    fields      text NOT NULL,
    PRIMARY KEY (supplier_id, id)
);
COMMENT ON TABLE supplier_pdus IS 'control: PDUs, or requests and responses, on a supplier''s wire while it was watched, the last 200 of each, for an hour. Numbers, texts and secrets are removed before they are written';
COMMENT ON COLUMN supplier_pdus.is_sent IS 'sent by us';
COMMENT ON COLUMN supplier_pdus.status IS 'the answer, the supplier''s or ours, in the protocol''s words; empty: success';
COMMENT ON COLUMN supplier_pdus.fields IS 'the fields that may be shown, masked, as JSON';

CREATE TABLE supplier_callbacks (
    id          uuid PRIMARY KEY,
    supplier_id uuid NOT NULL,
    body        bytea NOT NULL,
    received_at timestamptz NOT NULL
);
-- Sealed bytes do not compress: trying would only cost time.
ALTER TABLE supplier_callbacks ALTER COLUMN body SET STORAGE EXTERNAL;
COMMENT ON TABLE supplier_callbacks IS 'control: callbacks from HTTP suppliers as received, one row for those of an account that arrive together; stored before they are answered and deleted once processed. Sealed';

CREATE TABLE receipt_words (
    supplier_id uuid NOT NULL CONSTRAINT receipt_words_supplier REFERENCES suppliers,
    kind        text NOT NULL CHECK (kind IN ('state', 'error', 'answer')),
    word        text NOT NULL,
    count       bigint NOT NULL,
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    meaning     text NOT NULL DEFAULT '' CHECK (length(meaning) <= 500),
    PRIMARY KEY (supplier_id, kind, word)
);
COMMENT ON TABLE receipt_words IS 'control: unknown message states and error codes in receipts, and verdicts with codes of unsuccessful responses, counted for operators; at most a hundred of each per supplier';
COMMENT ON COLUMN receipt_words.meaning IS 'meaning of an error code, in an operator''s words; that of a state is a setting of its supplier';

CREATE TABLE tariffs (
    id          uuid PRIMARY KEY,
    kind        text NOT NULL CHECK (kind IN ('cost', 'price')),
    name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    supplier_id uuid CONSTRAINT tariffs_supplier REFERENCES suppliers,
    currency    text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    is_default  boolean NOT NULL DEFAULT false,
    created_at  timestamptz NOT NULL,
    changed_at  timestamptz NOT NULL,
    CONSTRAINT tariffs_whose CHECK ((kind = 'cost') = (supplier_id IS NOT NULL) AND (kind = 'price' OR NOT is_default))
);
CREATE UNIQUE INDEX tariffs_of_supplier ON tariffs (supplier_id) WHERE kind = 'cost';
CREATE UNIQUE INDEX tariffs_name ON tariffs (lower(name)) WHERE kind = 'price';
CREATE UNIQUE INDEX tariffs_default ON tariffs (is_default) WHERE is_default;
COMMENT ON TABLE tariffs IS 'reference: rate cards of suppliers (cost) and price lists of organizations (price)';
COMMENT ON COLUMN tariffs.is_default IS 'the price list of organizations without one of their own';
COMMENT ON COLUMN tariffs.changed_at IS 'last change of its rates: processes that have loaded them reload them';

CREATE TABLE tariff_rates (
    tariff_id      uuid NOT NULL CONSTRAINT tariff_rates_tariff REFERENCES tariffs,
    id             uuid NOT NULL,
    country        text NOT NULL,
    mcc            text NOT NULL CHECK (mcc ~ '^([0-9]{3})?$'),
    mnc            text NOT NULL CHECK (mnc ~ '^([0-9]{2,3})?$'),
    prefix         text NOT NULL CHECK (prefix ~ '^[0-9]{0,15}$'),
    message_class  text NOT NULL,
    sender_type    text NOT NULL,
    price          bigint NOT NULL CHECK (price >= 0),
    unit           text NOT NULL CHECK (unit IN ('segment', 'message')),
    bill_on        text NOT NULL CHECK (bill_on IN ('submit', 'delivered')),
    effective_from timestamptz,
    effective_to   timestamptz,
    rejects        boolean NOT NULL,
    notes          text NOT NULL,
    PRIMARY KEY (tariff_id, id),
    CONSTRAINT tariff_rates_times CHECK (effective_from < effective_to)
);
COMMENT ON TABLE tariff_rates IS 'reference: prices in millionths, by network, prefix or country, for a period. Imports leave no overlapping ones';
COMMENT ON COLUMN tariff_rates.country IS 'empty: any. The same for the text columns after it';
COMMENT ON COLUMN tariff_rates.effective_from IS 'NULL: without a beginning';
COMMENT ON COLUMN tariff_rates.effective_to IS 'NULL: until further notice';

CREATE TABLE number_networks (
    number     bigint NOT NULL,
    learned_on date NOT NULL,
    network    text NOT NULL CHECK (network ~ '^[0-9]{3}-[0-9]{2,3}$'),
    source     text NOT NULL CHECK (source IN ('receipt', 'lookup')),
    learned_at timestamptz NOT NULL,
    PRIMARY KEY (number, learned_on)
) PARTITION BY RANGE (learned_on);
CREATE INDEX number_networks_since ON number_networks (learned_at);
CREATE TABLE number_networks_rest PARTITION OF number_networks DEFAULT;
COMMENT ON TABLE number_networks IS 'control: networks of single numbers, as reported by receipts and look-ups, kept for 90 days';
COMMENT ON COLUMN number_networks.number IS 'digits of the number; erased with the person';
COMMENT ON COLUMN number_networks.learned_on IS 'the first of the month of learned_at, in UTC';
COMMENT ON COLUMN number_networks.network IS 'MCC-MNC, such as 643-04';

CREATE TABLE lookup_suppliers (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    kind       text NOT NULL,
    settings   jsonb NOT NULL,
    secret     bytea NOT NULL,
    state      text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'removed')),
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL
);
CREATE UNIQUE INDEX lookup_suppliers_name ON lookup_suppliers (lower(name)) WHERE state <> 'removed';
COMMENT ON TABLE lookup_suppliers IS 'reference: accounts that look up the network of a number';
COMMENT ON COLUMN lookup_suppliers.settings IS 'see suppliers/lookups/kind.py';
COMMENT ON COLUMN lookup_suppliers.secret IS 'sealed; empty once the account was removed';

CREATE TABLE number_lookups (
    number      bigint NOT NULL,
    asked_on    date NOT NULL,
    supplier_id uuid NOT NULL,
    state       text NOT NULL CHECK (state IN ('asked', 'found', 'unknown', 'failed')),
    network     text NOT NULL DEFAULT '',
    detail      text NOT NULL DEFAULT '',
    times       integer NOT NULL DEFAULT 0,
    price       bigint NOT NULL DEFAULT 0,
    currency    text NOT NULL DEFAULT '',
    asked_at    timestamptz NOT NULL,
    taken_until timestamptz,
    answered_at timestamptz,
    PRIMARY KEY (number, asked_on)
) PARTITION BY RANGE (asked_on);
CREATE INDEX number_lookups_open ON number_lookups (supplier_id, asked_at) WHERE state = 'asked';
CREATE TABLE number_lookups_rest PARTITION OF number_lookups DEFAULT;
COMMENT ON TABLE number_lookups IS 'control: look-ups of single numbers and their cost, kept for 90 days; those in state asked are a queue';
COMMENT ON COLUMN number_lookups.number IS 'digits of the number; negative and random in rows that keep only what was paid: of an erased person, of an earlier supplier or currency, of a second answer';
COMMENT ON COLUMN number_lookups.asked_on IS 'the first of the month of asked_at, in UTC';
COMMENT ON COLUMN number_lookups.supplier_id IS 'an id of lookup_suppliers';
COMMENT ON COLUMN number_lookups.times IS 'how often it was answered, and therefore charged';
COMMENT ON COLUMN number_lookups.price IS 'total for all those times, in millionths';
COMMENT ON COLUMN number_lookups.taken_until IS 'until then a worker has claimed it; NULL: unclaimed';


-- -- SMS sent ---------------------------------------------------------------------------------------------------------

CREATE TABLE sender_ids (
    organization_id  uuid NOT NULL CONSTRAINT sender_ids_organization REFERENCES organizations,
    id               uuid NOT NULL,
    value            text NOT NULL,
    status           text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'approved', 'rejected', 'suspended')),
    is_default       boolean NOT NULL DEFAULT false,
    rejection_reason text,
    created_at       timestamptz NOT NULL,
    reviewed_at      timestamptz,
    first_by         text CHECK (length(first_by) BETWEEN 1 AND 300),
    question         text CHECK (length(question) BETWEEN 1 AND 500),
    answer           text CHECK (length(answer) BETWEEN 1 AND 1000),
    PRIMARY KEY (organization_id, id),
    CONSTRAINT sender_ids_answers CHECK (answer IS NULL OR question IS NOT NULL),
    CONSTRAINT sender_ids_default_is_approved CHECK (NOT is_default OR status = 'approved')
);
CREATE UNIQUE INDEX sender_ids_value ON sender_ids (organization_id, lower(value));
CREATE UNIQUE INDEX sender_ids_default ON sender_ids (organization_id) WHERE is_default;
-- Finds the owner of a number that a handset wrote to.
CREATE INDEX sender_ids_approved ON sender_ids (lower(value)) WHERE status = 'approved';
-- Senders waiting for an operator, oldest first, and look-alikes (heliograph/overview/installation/approvals.py).
CREATE INDEX sender_ids_pending ON sender_ids (id) WHERE status = 'pending';
CREATE INDEX sender_ids_alike ON sender_ids ((translate(lower(value), '013457i8 ._&-', 'oleastlb') COLLATE "C"))
 WHERE status <> 'rejected';
CREATE INDEX sender_ids_alike_end ON sender_ids
    ((reverse(translate(lower(value), '013457i8 ._&-', 'oleastlb')) COLLATE "C")) WHERE status <> 'rejected';
-- Operators' lists across organizations: the newest, and those that begin with what they typed; each of all statuses or
-- of one, which may be rare.
CREATE INDEX sender_ids_newest ON sender_ids (id);
CREATE INDEX sender_ids_newest_of ON sender_ids (status, id);
CREATE INDEX sender_ids_begin ON sender_ids ((lower(value) COLLATE "C"));
CREATE INDEX sender_ids_begin_of ON sender_ids (status, (lower(value) COLLATE "C"));
COMMENT ON TABLE sender_ids IS 'tenant: names and numbers that an organization may send from';
COMMENT ON COLUMN sender_ids.question IS 'what operators asked before deciding; NULL: nothing. answer: the organization''s reply';
COMMENT ON COLUMN sender_ids.first_by IS 'the first of two operators to approve it, if the installation requires two; NULL: nobody yet';

CREATE TABLE sender_registrations (
    organization_id uuid NOT NULL,
    sender_id       uuid NOT NULL,
    country         text NOT NULL,
    network         text NOT NULL DEFAULT '',
    supplier_id     uuid NOT NULL,
    state           text NOT NULL CHECK (state IN ('asked', 'pending', 'registered', 'refused')),
    note            text NOT NULL DEFAULT '',
    asked_at        timestamptz NOT NULL,
    changed_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, sender_id, country, network, supplier_id),
    CONSTRAINT sender_registrations_sender FOREIGN KEY (organization_id, sender_id) REFERENCES sender_ids
);
COMMENT ON TABLE sender_registrations IS 'tenant: progress of registering an organization''s senders abroad; maintained by operators';
COMMENT ON COLUMN sender_registrations.network IS 'MCC-MNC; empty: the whole country';
COMMENT ON COLUMN sender_registrations.supplier_id IS 'the supplier it is registered with; zeros: any';
COMMENT ON COLUMN sender_registrations.note IS 'for operators and for the organization';

CREATE TABLE saved_texts (
    organization_id uuid NOT NULL CONSTRAINT saved_texts_organization REFERENCES organizations,
    id              uuid NOT NULL,
    name            text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    body            text NOT NULL CHECK (length(body) BETWEEN 1 AND 10000),
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    used_at         timestamptz,
    PRIMARY KEY (organization_id, id)
);
CREATE UNIQUE INDEX saved_texts_name ON saved_texts (organization_id, lower(name));
COMMENT ON TABLE saved_texts IS 'tenant: texts that people use repeatedly, at most 200 per organization; kept until somebody removes them';
COMMENT ON COLUMN saved_texts.body IS '1 to 1600 characters; longer if sealed';
COMMENT ON COLUMN saved_texts.used_at IS 'when it was last sent, to the minute';

-- No index by recipient or reference: a search scans a bounded number of messages, rather than having every
-- message pay for an index when it is accepted.
CREATE TABLE messages (
    organization_id  uuid NOT NULL,
    id               uuid NOT NULL,
    mode             live_or_test NOT NULL,
    status           sms_status NOT NULL,
    recipient        text NOT NULL,
    sender           text NOT NULL,
    sender_id        uuid NOT NULL,
    supplier_id      uuid,
    network          text,
    encoding         sms_encoding NOT NULL,
    segments         smallint NOT NULL,
    sender_defaulted boolean,
    class            traffic_class NOT NULL DEFAULT 'transactional',
    guarantee        sms_guarantee NOT NULL,
    country          text NOT NULL,
    body             text,
    client_reference text,
    campaign_id      uuid,
    key_id           uuid,
    person_id        uuid,
    request_id       text NOT NULL,
    balance_after    bigint NOT NULL,
    price            bigint,
    price_currency   text,
    price_due        text,
    cost             bigint,
    cost_currency    text,
    cost_due         text,
    route            text,
    accepted_at      timestamptz NOT NULL,
    send_at          timestamptz,
    expires_at       timestamptz,
    quiet_since      timestamptz,
    quiet_until      timestamptz,
    sent_at          timestamptz,
    delivered_at     timestamptz,
    failed_at        timestamptz,
    ended_at         timestamptz,
    failure_code     text,
    previous_status  text,
    event_id         uuid,
    receipt          uuid,
    receipt_attempt  smallint,
    receipt_state    text,
    receipt_error    text,
    receipt_at       timestamptz,
    PRIMARY KEY (organization_id, id)
) PARTITION BY RANGE (id);
-- Texts of scheduled messages are erased by this time. The text is not in the predicate, so that erasing it can be a
-- HOT update.
CREATE INDEX messages_scheduled ON messages (send_at) WHERE send_at IS NOT NULL;
-- Rows are inserted in order of time, so a few pages show whether a month about to be dropped holds a row younger than
-- its id. The same for the other indexes named `_age`.
CREATE INDEX messages_age ON messages USING brin (accepted_at) WITH (autosummarize = on);
CREATE TABLE messages_rest PARTITION OF messages DEFAULT WITH (fillfactor = 75);
COMMENT ON TABLE messages IS 'tenant: one row per SMS, which is also its entry in the usage list';
COMMENT ON COLUMN messages.sender_defaulted IS 'true: the send named no sender and got the organization''s default; NULL: it named one, or a campaign sent it';
COMMENT ON COLUMN messages.supplier_id IS 'the supplier that accepted it, once known; traffic counts it under this supplier';
COMMENT ON COLUMN messages.network IS 'the recipient''s network (MCC-MNC) as known when a supplier accepted the message; empty: not known';
COMMENT ON COLUMN messages.price IS 'millionths that its organization pays, settled when it was accepted; NULL: there was no price. price_due: submit, or delivered: only if it is delivered';
COMMENT ON COLUMN messages.cost IS 'millionths charged by the supplier that accepted it, settled with the attempt; NULL: not known. cost_due: like price_due';
COMMENT ON COLUMN messages.route IS 'name, at that time, of the route that chose the supplier that accepted it; NULL: no route did, or it is not known';
COMMENT ON COLUMN messages.previous_status IS 'status before the last change, which the traffic roll-ups subtract';
COMMENT ON COLUMN messages.class IS 'traffic class, as stated by its sender (a one-time code, transactional, marketing); routes and limits distinguish messages by it';
COMMENT ON COLUMN messages.country IS 'ISO region of the calling code; 001: none';
COMMENT ON COLUMN messages.body IS 'text; NULL: erased after the retention time or with its person';
COMMENT ON COLUMN messages.key_id IS 'API key of the request that sent it; NULL: sent by a campaign, a person or the command line';
COMMENT ON COLUMN messages.person_id IS 'the user who sent it on the dashboard; NULL: a key, a campaign or the command line did';
COMMENT ON COLUMN messages.balance_after IS 'remaining quota after it was accepted; test messages use none';
COMMENT ON COLUMN messages.send_at IS 'earliest time to send it; NULL: at once';
COMMENT ON COLUMN messages.expires_at IS 'not sent after this; NULL: the default of the retry schedule';
COMMENT ON COLUMN messages.quiet_until IS 'end of the quiet hours that this marketing message waits for, or waited for, since quiet_since';
COMMENT ON COLUMN messages.ended_at IS 'when it became canceled or unknown; other final states have columns of their own';
COMMENT ON COLUMN messages.event_id IS 'the one contract event raised by this message';
COMMENT ON COLUMN messages.receipt IS 'fingerprint of the first receipt that changed its status, which has no row in receipts; the following columns are that receipt''s';

CREATE VIEW usage_sums AS
SELECT organization_id,
       -- The last UUIDv7 of that millisecond: the sum's place among the entries.
       (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7fffbfffffffffffffff')::uuid AS id,
       'usage' AS type, 'sms' AS channel, -messages AS quantity, balance_after, segments, NULL::uuid AS message_id,
       NULL::uuid AS campaign_id, 'sum of ' || to_char(month, 'YYYY-MM') AS reason, at AS created_at
  FROM (SELECT organization_id, month, sum(messages)::bigint AS messages, sum(segments)::bigint AS segments,
               (array_agg(balance_after ORDER BY last_at DESC NULLS FIRST))[1] AS balance_after,
               -- The end of a month that is gone as a whole; while some of its messages remain, the time of the last
               -- one that was removed.
               CASE WHEN bool_or(last_at IS NULL)
                    THEN (month + interval '1 month') AT TIME ZONE 'UTC' - interval '1 millisecond'
                    ELSE max(last_at) END AS at
          FROM usage_months
         WHERE source = 'stray' OR EXISTS (SELECT FROM usage_closed WHERE usage_closed.source = usage_months.source)
         GROUP BY organization_id, month) months;
COMMENT ON VIEW usage_sums IS 'one entry in the usage list for each month whose messages were dropped, all or some of them';

-- The organization's usage list: messages, other changes of the quota, and the sums of months whose messages are
-- gone. `quantity` adds up to total - used of quotas at every commit.
CREATE VIEW usage_entries AS
SELECT organization_id, id, 'usage' AS type, 'sms' AS channel, -1::bigint AS quantity, balance_after,
       segments::bigint AS segments, id AS message_id, campaign_id, NULL::text AS reason, accepted_at AS created_at
  FROM messages WHERE mode = 'live'
UNION ALL
SELECT organization_id, id, type, channel, quantity, balance_after, segments, message_id, campaign_id, reason, created_at
  FROM usage_ledger
UNION ALL
SELECT * FROM usage_sums;
COMMENT ON VIEW usage_entries IS 'all changes of organizations'' quotas';

CREATE TABLE sms_parts (
    answered_on      date NOT NULL,
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
    PRIMARY KEY (id_key, supplier_id, recipient_suffix, message_id, attempt, part, answered_on)
) PARTITION BY RANGE (answered_on);
CREATE INDEX sms_parts_by_message ON sms_parts (message_id);
-- Only parts still waiting for a receipt: with the others in it, each scan would read days of traffic.
CREATE INDEX sms_parts_open ON sms_parts (created_at) WHERE parts > 1 AND state IS NULL;
CREATE INDEX sms_parts_age ON sms_parts USING brin (created_at) WITH (autosummarize = on);
CREATE TABLE sms_parts_rest PARTITION OF sms_parts DEFAULT;
COMMENT ON TABLE sms_parts IS 'control: supplier message id to message, for messages of several parts and for those accepted long before they were sent; for others it is in attempts. Suppliers reuse ids (wrap, restart), so the key is not unique';
COMMENT ON COLUMN sms_parts.answered_on IS 'day of created_at, in UTC';
COMMENT ON COLUMN sms_parts.attempt IS 'first attempt of its series';
COMMENT ON COLUMN sms_parts.state IS 'final state reported by a receipt; only for messages of several parts';

CREATE TABLE receipts (
    received_on     date NOT NULL,
    supplier_id     uuid NOT NULL,
    fingerprint     uuid NOT NULL,
    keys            text[] NOT NULL,
    state           text NOT NULL,
    error           text NOT NULL,
    recipients      boolean NOT NULL DEFAULT false,
    recipient       text NOT NULL,
    sender          text NOT NULL,
    reference       integer,
    submitted       integer,
    delivered       integer,
    received_at     timestamptz NOT NULL,
    organization_id uuid,
    message_id      uuid,
    attempt         smallint,
    part            smallint,
    tries           smallint NOT NULL DEFAULT 0,
    next_try_at     timestamptz,
    PRIMARY KEY (received_on, supplier_id, fingerprint)
) PARTITION BY RANGE (received_on);
-- Receipts waiting for their message are found by each of the ids they name, by the time of their next try, by the time
-- they arrived, and, for an attempt whose response was lost, by either number (`suffix_of` in sms/reports/keys.py).
-- Those matched at once never enter these indexes. Orphans are only in the last three: a supplier whose receipts match
-- nothing leaves many. The supplier comes last in each: until the table has been analyzed, an index that leads with it
-- looks as good as the right one.
CREATE INDEX receipts_early_1 ON receipts ((keys[1]), supplier_id) WHERE message_id IS NULL AND next_try_at IS NOT NULL;
CREATE INDEX receipts_early_2 ON receipts ((keys[2]), supplier_id) WHERE message_id IS NULL AND next_try_at IS NOT NULL;
CREATE INDEX receipts_due ON receipts (next_try_at) WHERE message_id IS NULL AND next_try_at IS NOT NULL;
CREATE INDEX receipts_unmatched ON receipts (received_at, supplier_id) WHERE message_id IS NULL;
CREATE INDEX receipts_unmatched_to ON receipts ((right(ltrim(recipient, '0'), 8)), received_at, supplier_id)
    WHERE message_id IS NULL;
CREATE INDEX receipts_unmatched_from ON receipts ((right(ltrim(sender, '0'), 8)), received_at, supplier_id)
    WHERE message_id IS NULL;
CREATE INDEX receipts_by_message ON receipts (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX receipts_age ON receipts USING brin (received_at) WITH (autosummarize = on);
CREATE TABLE receipts_rest PARTITION OF receipts DEFAULT;
COMMENT ON TABLE receipts IS 'control: receipts other than the first that changed its message''s status: unmatched, further and intermediate ones, and those of messages of several parts. A redelivered receipt is recognized by its fingerprint';
COMMENT ON COLUMN receipts.submitted IS '`sub` of the text; with `dlvrd` it decides for all parts, even if the receipt is matched later';
COMMENT ON COLUMN receipts.next_try_at IS 'when an unmatched receipt is tried again; NULL on an unmatched one: an orphan';

CREATE TABLE receipt_bytes (
    received_on  date NOT NULL,
    id           uuid NOT NULL,
    fingerprints uuid[] NOT NULL,
    raw          bytea[] NOT NULL,
    received_at  timestamptz NOT NULL,
    PRIMARY KEY (received_on, id)
) PARTITION BY RANGE (received_on);
CREATE TABLE receipt_bytes_rest PARTITION OF receipt_bytes DEFAULT;
COMMENT ON TABLE receipt_bytes IS 'control: receipts as received, one row per commit; dropped by day like texts, of which they may quote the beginning';
COMMENT ON COLUMN receipt_bytes.fingerprints IS 'one for each receipt, as in messages and receipts';


-- -- SMS received -----------------------------------------------------------------------------------------------------

CREATE TABLE inbound_messages (
    id              uuid PRIMARY KEY,
    supplier_id     uuid NOT NULL,
    sender          text NOT NULL,
    sender_ton      smallint NOT NULL DEFAULT 0,
    recipient       text NOT NULL,
    recipient_ton   smallint NOT NULL DEFAULT 0,
    form            text NOT NULL DEFAULT '',
    concatenation   integer[],
    body            bytea NOT NULL,
    raw             bytea NOT NULL,
    sealed          boolean NOT NULL DEFAULT false,
    received_at     timestamptz NOT NULL,
    acknowledged    boolean NOT NULL DEFAULT false,
    state           text NOT NULL DEFAULT 'new'
                    CHECK (state IN ('new', 'waiting', 'received', 'duplicate', 'unassigned')),
    due_at          timestamptz DEFAULT now(),
    organization_id uuid,
    message_id      uuid,
    key             text,
    asked           text CHECK (asked IN ('stop', 'start', 'help'))
);
CREATE UNIQUE INDEX inbound_messages_key ON inbound_messages (supplier_id, key) WHERE key IS NOT NULL;
CREATE INDEX inbound_messages_due ON inbound_messages (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX inbound_messages_unassigned ON inbound_messages (id) WHERE state = 'unassigned';
-- A handset that writes ten thousand times must not make each look-up read all its messages: repetitions are looked
-- for among unacknowledged messages, parts among those of the same reference.
CREATE INDEX inbound_messages_unanswered ON inbound_messages (sender, recipient, received_at)
    WHERE NOT acknowledged AND concatenation IS NULL;
CREATE INDEX inbound_messages_parts ON inbound_messages (sender, recipient, (concatenation[1]), received_at)
    WHERE concatenation IS NOT NULL;
COMMENT ON TABLE inbound_messages IS 'control: messages from handsets as received, stored before they are acknowledged. Then parts are joined, the organization is found and words such as STOP are acted on';
COMMENT ON COLUMN inbound_messages.sender_ton IS 'type of number (SMPP 3.4 5.2.5): 0 unknown, 1 international, 2 national';
COMMENT ON COLUMN inbound_messages.form IS 'the form in which the supplier''s kind reads body once all parts have arrived; empty: body is text in UTF-8';
COMMENT ON COLUMN inbound_messages.sealed IS 'body and raw are sealed by the key of organization_id; both are empty once erased';
COMMENT ON COLUMN inbound_messages.acknowledged IS 'our acknowledgement was written to the connection, so a repetition is another message';
COMMENT ON COLUMN inbound_messages.key IS 'digest of the supplier''s id of the message, if it gives one, with both addresses and the part: a repetition is not stored';
COMMENT ON COLUMN inbound_messages.asked IS 'what the supplier took the message for, if it acts on such words itself and says so';
COMMENT ON COLUMN inbound_messages.state IS 'waiting: for its other parts; unassigned: to a number that belongs to no organization, or to several';
COMMENT ON COLUMN inbound_messages.due_at IS 'when it is processed; NULL: done';
COMMENT ON COLUMN inbound_messages.message_id IS 'the message in received_messages that it belongs to';

CREATE TABLE received_messages (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    supplier_id     uuid NOT NULL,
    sender          text NOT NULL,
    recipient       text NOT NULL,
    sender_id       uuid NOT NULL,
    segments        smallint NOT NULL,
    missing         smallint NOT NULL DEFAULT 0,
    keyword         text CHECK (keyword IN ('stop', 'start', 'help')),
    body            text,
    received_at     timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
) PARTITION BY RANGE (id);
CREATE INDEX received_messages_age ON received_messages USING brin (received_at) WITH (autosummarize = on);
CREATE TABLE received_messages_rest PARTITION OF received_messages DEFAULT;
COMMENT ON TABLE received_messages IS 'tenant: messages from handsets, with parts joined';
COMMENT ON COLUMN received_messages.body IS 'text; NULL: none, or erased';
COMMENT ON COLUMN received_messages.sender IS 'the handset: E.164, or as the supplier wrote it if it is not a phone number';
COMMENT ON COLUMN received_messages.sender_id IS 'the sender ID that it was sent to';
COMMENT ON COLUMN received_messages.missing IS 'parts that have not arrived';

CREATE TABLE automatic_replies (
    organization_id uuid NOT NULL,
    recipient       text NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('stop', 'start', 'help')),
    message_id      uuid NOT NULL,
    sender_id       uuid NOT NULL,
    replied_at      timestamptz NOT NULL,
    refusal         text,
    PRIMARY KEY (organization_id, recipient, kind)
);
CREATE INDEX automatic_replies_by_message ON automatic_replies (organization_id, message_id);
COMMENT ON TABLE automatic_replies IS 'tenant: the last confirmation of each kind to a number, to limit them; message_id may be sent although the number has opted out';
COMMENT ON COLUMN automatic_replies.refusal IS 'code of the refusal, if the reply could not be accepted';

CREATE TABLE inbox_threads (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    channel         text NOT NULL CHECK (channel IN ('sms', 'whatsapp')),
    line_id         uuid NOT NULL,
    peer            text NOT NULL,
    message_id      uuid NOT NULL,
    heard_at        timestamptz NOT NULL,
    seen_id         uuid,
    assigned_to     uuid,
    closed_at       timestamptz,
    PRIMARY KEY (organization_id, id)
) WITH (fillfactor = 70);
CREATE INDEX inbox_threads_of_peer ON inbox_threads (organization_id, peer);
CREATE INDEX inbox_threads_newest ON inbox_threads (organization_id, message_id) WHERE message_id IS NOT NULL;
COMMENT ON TABLE inbox_threads IS 'tenant: conversations in an organization''s inbox, ordered by the last message; one row per pair of line and peer';
COMMENT ON COLUMN inbox_threads.id IS 'id of the WhatsApp conversation, or derived from line and peer';
COMMENT ON COLUMN inbox_threads.line_id IS 'the sender ID or WhatsApp number written to';
COMMENT ON COLUMN inbox_threads.peer IS 'the other side: E.164 with +, a user id, or as a supplier wrote it';
COMMENT ON COLUMN inbox_threads.message_id IS 'the last message from the peer';
COMMENT ON COLUMN inbox_threads.seen_id IS 'the last message when a member who may answer last looked';
COMMENT ON COLUMN inbox_threads.assigned_to IS 'the user who handles it';
COMMENT ON COLUMN inbox_threads.closed_at IS 'when it was marked as done; the next message makes it NULL again';


-- -- WhatsApp ---------------------------------------------------------------------------------------------------------
-- By Meta's Cloud API. Money is kept in millionths of the wallet's currency, as whole numbers.

CREATE TABLE whatsapp_apps (
    id               uuid PRIMARY KEY,
    app_id           text NOT NULL CONSTRAINT whatsapp_apps_app_id UNIQUE,
    secret           bytea NOT NULL,
    old_secret       bytea,
    old_secret_till  timestamptz,
    verify_token     bytea NOT NULL,
    verified_at      timestamptz,
    last_callback_at timestamptz,
    unsigned_at      timestamptz,
    created_at       timestamptz NOT NULL,
    changed_at       timestamptz NOT NULL
);
COMMENT ON TABLE whatsapp_apps IS 'reference: Meta apps, each with the secret that signs its callbacks to /in/whatsapp/{id}. Several organizations may share one. secret, old_secret and verify_token are sealed';
COMMENT ON COLUMN whatsapp_apps.unsigned_at IS 'when a callback last arrived that was not signed with its secret, to within a few seconds; NULL again once a signed one arrives';
COMMENT ON COLUMN whatsapp_apps.verified_at IS 'when the callback URL last answered the handshake with the right token';

CREATE TABLE whatsapp_accounts (
    organization_id       uuid NOT NULL CONSTRAINT whatsapp_accounts_organization REFERENCES organizations,
    id                    uuid NOT NULL,
    app                   uuid NOT NULL CONSTRAINT whatsapp_accounts_app REFERENCES whatsapp_apps,
    waba_id               text NOT NULL,
    name                  text NOT NULL DEFAULT '',
    state                 text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'removed')),
    currency              text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    portfolio             text NOT NULL,
    base_url              text NOT NULL,
    api_version           text NOT NULL,
    subscribed            boolean,

    token                 bytea NOT NULL,
    credential_status     text NOT NULL DEFAULT 'unknown'
                          CHECK (credential_status IN ('ok', 'expiring', 'missing_scope', 'invalid', 'unknown')),
    credential_detail     text NOT NULL DEFAULT '',
    credential_expires_at timestamptz,
    credential_checked_at timestamptz,

    held_until            timestamptz,
    held_reason           text,
    held_for_status       boolean NOT NULL DEFAULT false,
    trying_id             uuid,
    trying_at             timestamptz,
    released_at           timestamptz,

    mirror_at             timestamptz NOT NULL DEFAULT now(),
    mirrored_at           timestamptz,
    mirror_detail         text NOT NULL DEFAULT '',
    numbers_at            timestamptz NOT NULL DEFAULT now(),
    numbers_read_at       timestamptz,
    templates_at          timestamptz NOT NULL DEFAULT now(),
    templates_read_at     timestamptz,
    failures              integer NOT NULL DEFAULT 0,

    created_at            timestamptz NOT NULL,
    changed_at            timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
);
CREATE UNIQUE INDEX whatsapp_accounts_waba ON whatsapp_accounts (waba_id) WHERE state <> 'removed';
CREATE INDEX whatsapp_accounts_mirror ON whatsapp_accounts (mirror_at) WHERE state <> 'removed';
COMMENT ON TABLE whatsapp_accounts IS 'tenant: WhatsApp Business Accounts and the credentials for each. token is sealed';
COMMENT ON COLUMN whatsapp_accounts.portfolio IS 'business portfolio whose messaging limit its numbers share; the WABA id if Meta named none';
COMMENT ON COLUMN whatsapp_accounts.subscribed IS 'our app is subscribed to this account''s callbacks; NULL: not asked yet';
COMMENT ON COLUMN whatsapp_accounts.held_until IS 'nothing is sent before this (credential, policy or billing trouble); then one trial message is sent';
COMMENT ON COLUMN whatsapp_accounts.held_for_status IS 'the fault was reported by a status, so only a status can end the hold: a response says nothing about it';
COMMENT ON COLUMN whatsapp_accounts.trying_id IS 'the one message sent after the hold''s time, whose outcome decides';
COMMENT ON COLUMN whatsapp_accounts.trying_at IS 'when a worker was allowed to send one trial message; others wait for a while';
COMMENT ON COLUMN whatsapp_accounts.released_at IS 'when an operator last ended a hold manually';
COMMENT ON COLUMN whatsapp_accounts.mirror_at IS 'when templates, numbers and credential are next read from Meta';
COMMENT ON COLUMN whatsapp_accounts.numbers_at IS 'when numbers, their health and the credential are next read; templates_at: all templates. mirror_at is the earlier of the two';
COMMENT ON COLUMN whatsapp_accounts.templates_read_at IS 'all templates are known as of this time; older events change nothing. numbers_read_at likewise';
COMMENT ON COLUMN whatsapp_accounts.failures IS 'consecutive failed syncs, which lengthen the pause';

CREATE TABLE whatsapp_warnings (
    organization_id uuid NOT NULL,
    account_id      uuid NOT NULL,
    kind            text NOT NULL CHECK (kind IN (
                    'violation', 'scheduled_disable', 'disabled', 'restriction', 'review_rejected', 'alert', 'pin_changed',
                    'partner_removed')),
    detail          text NOT NULL,
    said_at         timestamptz NOT NULL,
    over_at         timestamptz,
    ends_at         timestamptz,
    subject         text NOT NULL DEFAULT '',
    PRIMARY KEY (organization_id, account_id, kind, subject, detail),
    CONSTRAINT whatsapp_warnings_account FOREIGN KEY (organization_id, account_id) REFERENCES whatsapp_accounts
);
COMMENT ON TABLE whatsapp_warnings IS 'tenant: warnings from Meta about an account, for its operator';
COMMENT ON COLUMN whatsapp_warnings.subject IS 'what an alert is about, so that its end ends no other: Meta''s type and entity';
COMMENT ON COLUMN whatsapp_warnings.detail IS 'Meta''s own words, for operators; may be empty';
COMMENT ON COLUMN whatsapp_warnings.ends_at IS 'when it ends by itself, as Meta said; NULL: it does not';
COMMENT ON COLUMN whatsapp_warnings.over_at IS 'when Meta withdrew it or an operator dismissed it; if repeated later, it is open again';

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
    held_for_status       boolean NOT NULL DEFAULT false,
    trying_id             uuid,
    trying_at             timestamptz,
    released_at           timestamptz,
    slowed_at             timestamptz,

    last_callback_at      timestamptz,
    last_sent_at          timestamptz,
    last_checked_at       timestamptz,
    missing_at            timestamptz,
    applied_at            timestamptz,
    applied               jsonb NOT NULL DEFAULT '{}',
    created_at            timestamptz NOT NULL,
    changed_at            timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id),
    CONSTRAINT whatsapp_numbers_account FOREIGN KEY (organization_id, account_id) REFERENCES whatsapp_accounts
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX whatsapp_numbers_graph_id ON whatsapp_numbers (graph_id) WHERE state <> 'removed';
CREATE INDEX whatsapp_numbers_by_account ON whatsapp_numbers (organization_id, account_id)
    WHERE account_id IS NOT NULL;
COMMENT ON TABLE whatsapp_numbers IS 'tenant: senders of an account, mirrored from Meta';
COMMENT ON COLUMN whatsapp_numbers.graph_id IS 'Meta''s phone number id; never shown to a customer';
COMMENT ON COLUMN whatsapp_numbers.messaging_limit IS 'unique users a day outside of service windows; NULL: unlimited or unknown';
COMMENT ON COLUMN whatsapp_numbers.held_until IS 'as in whatsapp_accounts, for this number alone, like the columns after it';
COMMENT ON COLUMN whatsapp_numbers.slowed_at IS 'when a status last reported that it sends too fast: each worker halves its rate once';
COMMENT ON COLUMN whatsapp_numbers.last_sent_at IS 'when a status last reported a message of this number as sent, within 15 s';
COMMENT ON COLUMN whatsapp_numbers.missing_at IS 'since when it has been missing from listings, although Meta has not reported its removal';
COMMENT ON COLUMN whatsapp_numbers.applied_at IS 'time of the newest event applied; older ones change nothing';
COMMENT ON COLUMN whatsapp_numbers.applied IS 'for each facet of the record, the Unix time of its newest event';

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
    rejection_reason text,
    quality          text NOT NULL DEFAULT 'unknown',
    disabled_locally boolean NOT NULL DEFAULT false,
    held_until       timestamptz,
    parameter_format text NOT NULL DEFAULT 'POSITIONAL' CHECK (parameter_format IN ('POSITIONAL', 'NAMED')),
    parameter_count  smallint NOT NULL,
    components       jsonb NOT NULL,
    edited_at        timestamptz,
    body_preview     text NOT NULL,
    ttl_seconds      integer,
    reread_at        timestamptz,
    missing_at       timestamptz,
    applied_at       timestamptz,
    applied          jsonb NOT NULL DEFAULT '{}',
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id),
    CONSTRAINT whatsapp_templates_account FOREIGN KEY (organization_id, account_id) REFERENCES whatsapp_accounts
);
CREATE UNIQUE INDEX whatsapp_templates_name ON whatsapp_templates (organization_id, account_id, name, language)
    WHERE name IS NOT NULL;
CREATE INDEX whatsapp_templates_graph_id ON whatsapp_templates (graph_id);
CREATE INDEX whatsapp_templates_reread ON whatsapp_templates (organization_id, account_id, reread_at)
    WHERE reread_at IS NOT NULL;
COMMENT ON TABLE whatsapp_templates IS 'tenant: templates, mirrored from Meta';
COMMENT ON COLUMN whatsapp_templates.edited_at IS 'when its parts were last found to have changed';
COMMENT ON COLUMN whatsapp_templates.disabled_locally IS 'disabled by an operator; no sync enables it again';
COMMENT ON COLUMN whatsapp_templates.held_until IS 'when a paused template is read again';
COMMENT ON COLUMN whatsapp_templates.reread_at IS 'when this template alone is read again, after an event';
COMMENT ON COLUMN whatsapp_templates.missing_at IS 'since when it has been missing from listings, although Meta has not reported its removal: messages that need it wait';
COMMENT ON COLUMN whatsapp_templates.applied_at IS 'time of the newest event or sync applied; older ones change nothing';
COMMENT ON COLUMN whatsapp_templates.applied IS 'for each facet of the record, the Unix time of its newest event';

CREATE TABLE whatsapp_qualities (
    organization_id uuid NOT NULL,
    object_id       uuid NOT NULL,
    at              timestamptz NOT NULL,
    quality         text NOT NULL,
    messaging_limit integer,
    PRIMARY KEY (organization_id, object_id, at)
);
COMMENT ON TABLE whatsapp_qualities IS 'tenant: history of the quality of numbers and templates, one row per change of it or of a limit; kept as long as messages';
COMMENT ON COLUMN whatsapp_qualities.object_id IS 'a number or a template';

CREATE TABLE whatsapp_conversations (
    organization_id  uuid NOT NULL,
    id               uuid NOT NULL,
    mode             live_or_test NOT NULL DEFAULT 'live',
    number_id        uuid NOT NULL,
    recipient        text NOT NULL,
    user_id          text,
    merged_into      uuid,
    opened_at        timestamptz,
    expires_at       timestamptz,
    closed_at        timestamptz,
    referred_at      timestamptz,
    free_until       timestamptz,
    last_inbound_at  timestamptz,
    last_outbound_at timestamptz,
    pair_paid_until  timestamptz,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
) WITH (fillfactor = 70);
CREATE INDEX whatsapp_conversations_by_recipient ON whatsapp_conversations (organization_id, recipient, id)
    WHERE recipient IS NOT NULL;
CREATE INDEX whatsapp_conversations_merged ON whatsapp_conversations (organization_id, merged_into)
    WHERE merged_into IS NOT NULL;
CREATE INDEX whatsapp_conversations_referred ON whatsapp_conversations (referred_at) WHERE referred_at IS NOT NULL;
COMMENT ON TABLE whatsapp_conversations IS 'tenant: one per pair of number and user, with the service window opened by the user''s messages';
COMMENT ON COLUMN whatsapp_conversations.mode IS 'test and live conversations are separate; aliases of test ones begin with `test:`, unlike any number or user id';
COMMENT ON COLUMN whatsapp_conversations.recipient IS 'E.164 with +; the user id if the user hides the number';
COMMENT ON COLUMN whatsapp_conversations.merged_into IS 'the conversation that turned out to have the same user: references to this one mean that one';
COMMENT ON COLUMN whatsapp_conversations.opened_at IS 'when the user last sent a message that opens the window for a day';
COMMENT ON COLUMN whatsapp_conversations.closed_at IS 'when Meta reported the window as closed: only later messages from the user open it';
COMMENT ON COLUMN whatsapp_conversations.referred_at IS 'when the user came through an advertisement: a reply within a day starts 72 free hours';
COMMENT ON COLUMN whatsapp_conversations.pair_paid_until IS 'how far ahead the accepted messages have used up Meta''s limit for a number and a user: each moves it by 6 s, and a refusal of Meta''s to where all is used up';

CREATE TABLE whatsapp_aliases (
    organization_id uuid NOT NULL,
    number_id       uuid NOT NULL,
    alias           text NOT NULL,
    conversation_id uuid NOT NULL,
    PRIMARY KEY (organization_id, number_id, alias)
);
CREATE INDEX whatsapp_aliases_by_alias ON whatsapp_aliases (organization_id, alias) WHERE alias IS NOT NULL;
COMMENT ON TABLE whatsapp_aliases IS 'tenant: names by which a user''s conversation with a number is found; the user''s other names are in person_names';
COMMENT ON COLUMN whatsapp_aliases.alias IS 'a key of person_of without +, or a user id';

CREATE TABLE whatsapp_words (
    organization_id uuid NOT NULL,
    recipient       text NOT NULL,
    word            text NOT NULL CHECK (word IN ('stop', 'start')),
    said_at         timestamptz NOT NULL,
    person          text NOT NULL GENERATED ALWAYS AS (person_of(recipient)) STORED,
    PRIMARY KEY (organization_id, person)
);
COMMENT ON TABLE whatsapp_words IS 'tenant: the newest STOP or START that a user sent by WhatsApp; older ones that arrive late change nothing';

CREATE TABLE whatsapp_messages (
    organization_id   uuid NOT NULL,
    id                uuid NOT NULL,
    direction         whatsapp_direction NOT NULL,
    mode              live_or_test NOT NULL,
    status            whatsapp_status NOT NULL,
    number_id         uuid NOT NULL,
    conversation_id   uuid NOT NULL,
    recipient         text NOT NULL,
    type              text NOT NULL,
    template_id       uuid,
    template_name     text,
    template_language text,
    content           text,
    client_reference  text,
    campaign_id       uuid,
    key_id            uuid,
    person_id         uuid,
    request_id        text NOT NULL,
    accepted_at       timestamptz NOT NULL,
    deadline_at       timestamptz,
    sent_at           timestamptz,
    delivered_at      timestamptz,
    read_at           timestamptz,
    failed_at         timestamptz,
    canceled_at       timestamptz,
    failure_code      text,
    failure_evidence  text,
    event_id          uuid,
    delivered_event   boolean NOT NULL DEFAULT false,

    -- Money.
    billing_category  text,
    country           text,
    charge            whatsapp_charge NOT NULL DEFAULT 'none',
    reserved          amount NOT NULL DEFAULT 0,
    consumed          amount NOT NULL DEFAULT 0,
    pricing           text,
    priced_by         text,
    PRIMARY KEY (organization_id, id),
    CONSTRAINT whatsapp_messages_reserved CHECK (charge = 'reserved' OR reserved = 0)
) PARTITION BY RANGE (id);
CREATE INDEX whatsapp_messages_by_recipient ON whatsapp_messages (organization_id, recipient, id)
    WHERE recipient IS NOT NULL;
-- Only open messages: every end raises an event, except a cancellation, which clears the deadline. A predicate on the
-- status would make each status another entry in every index.
CREATE INDEX whatsapp_messages_deadline ON whatsapp_messages (deadline_at)
    WHERE event_id IS NULL AND deadline_at IS NOT NULL;
CREATE INDEX whatsapp_messages_age ON whatsapp_messages USING brin (accepted_at) WITH (autosummarize = on);
CREATE TABLE whatsapp_messages_rest PARTITION OF whatsapp_messages DEFAULT WITH (fillfactor = 60);
COMMENT ON TABLE whatsapp_messages IS 'tenant: one row per WhatsApp message, in either direction';
COMMENT ON COLUMN whatsapp_messages.content IS 'content as JSON: template parameters, a text, or an inbound message; NULL: erased';
COMMENT ON COLUMN whatsapp_messages.key_id IS 'as in messages';
COMMENT ON COLUMN whatsapp_messages.person_id IS 'as in messages';
COMMENT ON COLUMN whatsapp_messages.recipient IS 'the user, in either direction: E.164 with +, or a user id';
COMMENT ON COLUMN whatsapp_messages.deadline_at IS 'Meta silently drops it after this: without a status by then it expires; NULL: canceled, or inbound';
COMMENT ON COLUMN whatsapp_messages.failure_evidence IS 'Meta''s code, if a status reported the failure; evidence, never shown to customers. The response to an attempt is in attempts';
COMMENT ON COLUMN whatsapp_messages.event_id IS 'the first contract event raised by this message';
COMMENT ON COLUMN whatsapp_messages.delivered_event IS 'message.delivered was raised: the only contract event that may follow a failure, once';
COMMENT ON COLUMN whatsapp_messages.reserved IS 'currently reserved in the wallet, in millionths';
COMMENT ON COLUMN whatsapp_messages.pricing IS 'pricing as reported by Meta''s status, "type/category"; evidence, never shown';
COMMENT ON COLUMN whatsapp_messages.priced_by IS 'the status that reported `pricing`: Meta may report it with any status, and one of lower rank no longer changes it';

CREATE TABLE whatsapp_wamids (
    born_on         date NOT NULL,
    number_id       uuid NOT NULL,
    wamid           text NOT NULL,
    organization_id uuid NOT NULL,
    message_id      uuid NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (number_id, wamid, born_on)
) PARTITION BY RANGE (born_on);
CREATE INDEX whatsapp_wamids_age ON whatsapp_wamids USING brin (created_at) WITH (autosummarize = on);
CREATE TABLE whatsapp_wamids_rest PARTITION OF whatsapp_wamids DEFAULT;
COMMENT ON TABLE whatsapp_wamids IS 'control: Meta''s message id to ours, in both directions. The day is derived from the message, so each id is stored once';
COMMENT ON COLUMN whatsapp_wamids.born_on IS 'day (UTC) of the message: by its own id if sent, by Meta''s time if received';

CREATE TABLE whatsapp_early_statuses (
    number_id        uuid NOT NULL,
    wamid            text NOT NULL,
    status           text NOT NULL,
    at               timestamptz NOT NULL,
    failure_code     text,
    failure_evidence text,
    pricing          text,
    received_at      timestamptz NOT NULL,
    PRIMARY KEY (number_id, wamid, status)
);
CREATE INDEX whatsapp_early_statuses_age ON whatsapp_early_statuses (received_at);
COMMENT ON TABLE whatsapp_early_statuses IS 'control: statuses of messages not known yet, looked up when the response to the send is recorded. Dropped after a week';

CREATE TABLE whatsapp_callbacks (
    id          uuid PRIMARY KEY,
    app         uuid NOT NULL,
    body        bytea NOT NULL,
    items       integer NOT NULL DEFAULT 0,
    received_at timestamptz NOT NULL
);
-- Sealed bytes do not compress: trying would only cost time.
ALTER TABLE whatsapp_callbacks ALTER COLUMN body SET STORAGE EXTERNAL;
COMMENT ON TABLE whatsapp_callbacks IS 'control: callbacks from Meta as received, stored before they are answered and deleted once processed. Sealed';
COMMENT ON COLUMN whatsapp_callbacks.items IS 'approximately what it costs to apply, in statuses';

CREATE TABLE whatsapp_dead_letters (
    id          uuid PRIMARY KEY,
    app         uuid NOT NULL,
    body        bytea NOT NULL,
    reason      text NOT NULL,
    received_at timestamptz NOT NULL
);
ALTER TABLE whatsapp_dead_letters ALTER COLUMN body SET STORAGE EXTERNAL;
-- For those that are retried after each sync.
CREATE INDEX whatsapp_dead_letters_awaited ON whatsapp_dead_letters (app, received_at) WHERE reason = 'unknown number';
COMMENT ON TABLE whatsapp_dead_letters IS 'control: items of callbacks that could not be applied, kept for operators for eight days. Sealed';

CREATE TABLE whatsapp_portfolios (
    portfolio text PRIMARY KEY,
    users     integer NOT NULL,
    frees_at  timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE whatsapp_portfolios IS 'control: number of users in whatsapp_reached that count against a portfolio''s messaging limit. Adding one locks this row, so it is exact for any number of workers';
COMMENT ON COLUMN whatsapp_portfolios.users IS 'never too few: users messaged more than 24 hours ago are subtracted when the limit is reached';
COMMENT ON COLUMN whatsapp_portfolios.frees_at IS 'no user stops counting before this time';

CREATE TABLE whatsapp_reached (
    portfolio  text NOT NULL,
    recipient  text NOT NULL,
    reached_at timestamptz NOT NULL,
    PRIMARY KEY (portfolio, recipient)
) WITH (fillfactor = 80);
CREATE INDEX whatsapp_reached_age ON whatsapp_reached (portfolio, reached_at);
COMMENT ON TABLE whatsapp_reached IS 'control: users messaged outside a service window, who count against a portfolio''s messaging limit for 24 hours';

CREATE TABLE whatsapp_rates (
    currency   text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    category   text NOT NULL,
    country    text NOT NULL,
    valid_from timestamptz NOT NULL,
    price      bigint NOT NULL CHECK (price >= 0),
    created_at timestamptz NOT NULL,
    PRIMARY KEY (currency, category, country, valid_from)
);
COMMENT ON TABLE whatsapp_rates IS 'reference: price of a delivered message from a certain day, in millionths. country: an ISO region, or * for all others';

CREATE TABLE wallets (
    organization_id uuid PRIMARY KEY CONSTRAINT wallets_organization REFERENCES organizations,
    currency        currency_code NOT NULL,
    available       bigint NOT NULL DEFAULT 0,
    reserved        amount NOT NULL DEFAULT 0,
    consumed        amount NOT NULL DEFAULT 0,
    total           bigint NOT NULL DEFAULT 0,
    alert_below     amount,
    is_alerted      boolean NOT NULL DEFAULT false,
    updated_at      timestamptz NOT NULL,
    CONSTRAINT wallets_total CHECK (total = available + reserved + consumed)
) WITH (fillfactor = 50);
COMMENT ON TABLE wallets IS 'tenant: the maintained balance for WhatsApp, in millionths; its row lock also serializes an organization''s accepts';
COMMENT ON COLUMN wallets.alert_below IS 'the wallet''s page warns when less than this is available; NULL: never';
COMMENT ON COLUMN wallets.is_alerted IS 'people were told that it is below its alert, and it has not been above it since';
COMMENT ON COLUMN wallets.available IS 'negative only if Meta delivers messages that had been given up as lost';

CREATE TABLE wallet_ledger (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    movement        text NOT NULL CHECK (movement IN ('top_up', 'adjustment')),
    available       bigint NOT NULL,
    reason          text,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
);
COMMENT ON TABLE wallet_ledger IS 'tenant: changes of a wallet not caused by messages; append-only, kept forever. See wallet_entries';

CREATE TABLE wallet_movements (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    movement        wallet_movement NOT NULL,
    message_id      uuid NOT NULL,
    key             text NOT NULL DEFAULT '',
    available       bigint NOT NULL,
    reserved        bigint NOT NULL,
    consumed        bigint NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, message_id, movement, key)
) PARTITION BY RANGE (message_id);
CREATE INDEX wallet_movements_newest ON wallet_movements (organization_id, id);
CREATE INDEX wallet_movements_age ON wallet_movements USING brin (created_at) WITH (autosummarize = on);
CREATE TABLE wallet_movements_rest PARTITION OF wallet_movements DEFAULT;
COMMENT ON TABLE wallet_movements IS 'tenant: changes of a wallet by messages; append-only. Partitioned by the month of the message, so that the key is unique forever';
COMMENT ON COLUMN wallet_movements.key IS 'distinguishes movements of one kind and message: the pricing reported by Meta';

CREATE TABLE wallet_months (
    organization_id uuid NOT NULL,
    month           date NOT NULL,
    available       bigint NOT NULL,
    reserved        bigint NOT NULL,
    consumed        bigint NOT NULL,
    is_closed       boolean NOT NULL DEFAULT false,
    PRIMARY KEY (organization_id, month)
);
COMMENT ON TABLE wallet_months IS 'tenant: sums of a month of wallet_movements, which replace them once they are dropped';
COMMENT ON COLUMN wallet_months.is_closed IS 'set in the commit that drops the movements. Until then the sum is incomplete and not read';

CREATE VIEW wallet_sums AS
SELECT organization_id,
       -- The last UUIDv7 of the month: the sum's place among the entries.
       (lpad(to_hex((extract(epoch FROM (month + interval '1 month') AT TIME ZONE 'UTC') * 1000)::bigint - 1), 12, '0')
           || '7fffbfffffffffffffff')::uuid AS id,
       available, reserved, consumed, 'sum of ' || to_char(month, 'YYYY-MM') AS reason,
       (month + interval '1 month') AT TIME ZONE 'UTC' - interval '1 millisecond' AS created_at
  FROM wallet_months WHERE is_closed;
COMMENT ON VIEW wallet_sums IS 'one entry of a wallet for each month whose messages were dropped';

-- All changes of wallets. They add up to the wallet at every commit.
CREATE VIEW wallet_entries AS
SELECT organization_id, id, movement, NULL::uuid AS message_id, '' AS key, available, 0::bigint AS reserved,
       0::bigint AS consumed, reason, created_at
  FROM wallet_ledger
UNION ALL
SELECT organization_id, id, movement, message_id, key, available, reserved, consumed, NULL, created_at
  FROM wallet_movements
UNION ALL
SELECT organization_id, id, 'month', NULL, '', available, reserved, consumed, reason, created_at FROM wallet_sums;
COMMENT ON VIEW wallet_entries IS 'all changes of organizations'' wallets';

CREATE TABLE wallet_days (
    organization_id uuid NOT NULL,
    day             date NOT NULL,
    category        text NOT NULL,
    messages        bigint NOT NULL,
    consumed        bigint NOT NULL,
    PRIMARY KEY (organization_id, day, category)
) WITH (fillfactor = 50);
COMMENT ON TABLE wallet_days IS 'tenant: consumption of a wallet by day (UTC) and billing category, maintained with it: the rows add up to the wallet''s consumed';
COMMENT ON COLUMN wallet_days.messages IS 'messages charged for the first time; later corrections of the price are not counted';


-- -- Events and webhooks ----------------------------------------------------------------------------------------------

CREATE TABLE events (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    mode            live_or_test NOT NULL DEFAULT 'live',
    kind            text NOT NULL,
    message_id      uuid,
    request_id      text NOT NULL,
    data            text NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
) PARTITION BY RANGE (id);
CREATE INDEX events_age ON events USING brin (created_at) WITH (autosummarize = on);
-- Events that quote a text from a handset, until it is erased.
CREATE INDEX events_with_text ON events (id) WHERE kind = 'message.received' AND data LIKE '%"text":"%';
CREATE TABLE events_rest PARTITION OF events DEFAULT;
COMMENT ON TABLE events IS 'tenant: events, recorded in the transaction that caused them. data is JSON, sent as is';
COMMENT ON COLUMN events.mode IS 'only endpoints and keys of this mode receive it';

CREATE TABLE webhook_endpoints (
    organization_id      uuid NOT NULL CONSTRAINT webhook_endpoints_organization REFERENCES organizations,
    id                   uuid NOT NULL,
    mode                 text NOT NULL DEFAULT 'live' CHECK (mode IN ('live', 'test')),
    url                  text NOT NULL CHECK (length(url) <= 2048),
    subscribed_events    text[] NOT NULL,
    description          text NOT NULL DEFAULT '' CHECK (length(description) <= 200),
    status               text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'paused', 'disabled')),
    secret               bytea NOT NULL,
    old_secrets          bytea[] NOT NULL DEFAULT '{}',
    old_secrets_until    timestamptz[] NOT NULL DEFAULT '{}',
    created_at           timestamptz NOT NULL,
    disabled_at          timestamptz,
    disabled_reason      text,
    enabled_at           timestamptz,
    last_success_at      timestamptz,
    failing_since        timestamptz,
    moved_at             timestamptz,
    consecutive_failures integer NOT NULL DEFAULT 0,
    catches_until        timestamptz,
    paused_at            timestamptz,
    waits_from           timestamptz,
    dropped              bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (organization_id, id),
    CONSTRAINT webhook_endpoints_paused CHECK ((status = 'paused') = (paused_at IS NOT NULL)),
    CONSTRAINT webhook_endpoints_old_secrets CHECK (cardinality(old_secrets) = cardinality(old_secrets_until))
) WITH (fillfactor = 70);
-- An organization has few endpoints in use, and any number of others.
CREATE INDEX webhook_endpoints_used ON webhook_endpoints (organization_id) WHERE status <> 'disabled';
-- Few fail at a time.
CREATE INDEX webhook_endpoints_failing ON webhook_endpoints (failing_since) WHERE status = 'active' AND failing_since IS NOT NULL;
CREATE INDEX webhook_endpoints_disabled ON webhook_endpoints (organization_id, disabled_at, id) WHERE status = 'disabled';
-- A mode has one catcher, which is reopened as needed; few are open at a time.
CREATE UNIQUE INDEX webhook_endpoints_catcher ON webhook_endpoints (organization_id, mode) WHERE catches_until IS NOT NULL;
CREATE INDEX webhook_endpoints_catching ON webhook_endpoints (catches_until) WHERE status = 'active' AND catches_until IS NOT NULL;
COMMENT ON TABLE webhook_endpoints IS 'tenant: destinations of events. secret is sealed';
COMMENT ON COLUMN webhook_endpoints.old_secrets IS 'previous secrets that still sign alongside the new one, newest first; sealed like secret';
COMMENT ON COLUMN webhook_endpoints.waits_from IS 'events recorded since then and never delivered are recovered when a paused or disabled endpoint comes back; NULL while active';
COMMENT ON COLUMN webhook_endpoints.enabled_at IS 'when it was last enabled without recovering missed events: none from before are recovered later; NULL: never';
COMMENT ON COLUMN webhook_endpoints.moved_at IS 'when its address was last changed, later by the pauses since then; NULL: never';
COMMENT ON COLUMN webhook_endpoints.dropped IS 'deliveries removed from the queue when it was paused or disabled';
COMMENT ON COLUMN webhook_endpoints.catches_until IS 'end of a catcher, whose events are stored in webhook_caught instead of being posted';

CREATE TABLE webhook_caught (
    organization_id uuid NOT NULL,
    caught_at       timestamptz NOT NULL,
    event_id        uuid NOT NULL,
    endpoint_id     uuid NOT NULL,
    headers         text NOT NULL,
    body            text NOT NULL,
    PRIMARY KEY (organization_id, caught_at, event_id)
);
CREATE INDEX webhook_caught_age ON webhook_caught USING brin (caught_at) WITH (autosummarize = on);
COMMENT ON TABLE webhook_caught IS 'tenant: callbacks stored by catchers, at most 200 per organization; erased when the catcher ends';
COMMENT ON COLUMN webhook_caught.headers IS 'as they would have been sent, one per line';

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
CREATE INDEX webhook_attempts_age ON webhook_attempts USING brin (started_at) WITH (autosummarize = on);
CREATE TABLE webhook_attempts_rest PARTITION OF webhook_attempts DEFAULT;
COMMENT ON TABLE webhook_attempts IS 'tenant: attempts to deliver an event to an endpoint, except successful first attempts';

CREATE TABLE webhook_attempt_evidence (
    organization_id uuid NOT NULL,
    begun_on        date NOT NULL,
    event_id        uuid NOT NULL,
    endpoint_id     uuid NOT NULL,
    started_at      timestamptz NOT NULL,
    url             text NOT NULL,
    sent            text NOT NULL,
    head            bytea NOT NULL,
    body            bytea NOT NULL,
    address         text,
    dns_ms          real,
    connect_ms      real,
    tls_ms          real,
    first_byte_ms   real,
    PRIMARY KEY (organization_id, begun_on, event_id, endpoint_id, started_at)
) PARTITION BY RANGE (begun_on);
CREATE TABLE webhook_attempt_evidence_rest PARTITION OF webhook_attempt_evidence DEFAULT;
COMMENT ON TABLE webhook_attempt_evidence IS 'tenant: requests and responses of failed attempts and of tests; kept for a week, dropped by day';
COMMENT ON COLUMN webhook_attempt_evidence.sent IS 'the identifying and signing headers; the rest of the request is rebuilt from the event';
COMMENT ON COLUMN webhook_attempt_evidence.started_at IS 'distinguishes attempts of an event, as in webhook_attempts';

CREATE TABLE message_traces (
    organization_id uuid NOT NULL,
    message_id      uuid NOT NULL,
    trace_id        uuid NOT NULL,
    span_id         bigint NOT NULL,
    at              timestamptz NOT NULL,
    PRIMARY KEY (organization_id, message_id)
) PARTITION BY RANGE (message_id);
CREATE TABLE message_traces_rest PARTITION OF message_traces DEFAULT;
COMMENT ON TABLE message_traces IS 'tenant: where the trace of a traced message continues, by day. Ids of such messages and of their events are marked by some of their bits';
COMMENT ON COLUMN message_traces.span_id IS 'span of the request that sent it: 64 bits, so it may be negative';
COMMENT ON COLUMN message_traces.at IS 'when it was accepted';

CREATE TABLE webhook_successes (
    organization_id uuid NOT NULL,
    endpoint_id     uuid NOT NULL,
    first_event     uuid NOT NULL,
    events          uuid[] NOT NULL,
    started_ms      integer[] NOT NULL,
    duration_ms     integer[] NOT NULL,
    status          smallint[] NOT NULL,
    started_from    timestamptz NOT NULL,
    started_to      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, first_event, endpoint_id)
) PARTITION BY RANGE (first_event);
CREATE INDEX webhook_successes_by_endpoint ON webhook_successes (organization_id, endpoint_id, started_to);
CREATE INDEX webhook_successes_age ON webhook_successes USING brin (started_to) WITH (autosummarize = on);
CREATE TABLE webhook_successes_rest PARTITION OF webhook_successes DEFAULT;
COMMENT ON TABLE webhook_successes IS 'tenant: events that an endpoint accepted at the first attempt, many per row: events of the same second, attempts begun within ten';
COMMENT ON COLUMN webhook_successes.first_event IS 'the smallest of events';
COMMENT ON COLUMN webhook_successes.started_ms IS 'start of each attempt, in milliseconds after started_from';
COMMENT ON COLUMN webhook_successes.started_from IS 'start of the earliest attempt; started_to: of the latest';

CREATE TABLE webhook_replays (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    endpoint_id     uuid NOT NULL,
    from_at         timestamptz NOT NULL,
    to_at           timestamptz NOT NULL,
    kinds           text[] NOT NULL,
    only_failed     boolean NOT NULL,
    cause           text NOT NULL DEFAULT 'request' CHECK (cause IN ('request', 'return')),
    status          text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'completed', 'canceled')),
    held            boolean NOT NULL DEFAULT false,
    position        uuid NOT NULL,
    queued          bigint NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL,
    stepped_at      timestamptz NOT NULL,
    completed_at    timestamptz,
    PRIMARY KEY (organization_id, id),
    CONSTRAINT webhook_replays_endpoint FOREIGN KEY (organization_id, endpoint_id) REFERENCES webhook_endpoints,
    CONSTRAINT webhook_replays_range CHECK (to_at > from_at),
    CONSTRAINT webhook_replays_completed CHECK ((completed_at IS NULL) = (status = 'running'))
);
CREATE UNIQUE INDEX webhook_replays_one ON webhook_replays (organization_id, endpoint_id, cause) WHERE status = 'running';
CREATE INDEX webhook_replays_by_endpoint ON webhook_replays (organization_id, endpoint_id, id);
CREATE INDEX webhook_replays_next ON webhook_replays (stepped_at) WHERE status = 'running' AND NOT held;
COMMENT ON TABLE webhook_replays IS 'tenant: time ranges being replayed to an endpoint, and their progress';
COMMENT ON COLUMN webhook_replays.cause IS 'request: it was requested; return: its endpoint came back after it was paused or disabled';
COMMENT ON COLUMN webhook_replays.held IS 'its endpoint is paused; it continues afterwards';
COMMENT ON COLUMN webhook_replays.position IS 'the last event examined';
COMMENT ON COLUMN webhook_replays.stepped_at IS 'its place among those that run; in the future while it waits for its endpoint';

-- Attempts counted by the hour of their start and by result; histograms are as in traffic.
CREATE TABLE webhook_traffic_deltas (
    organization_id uuid NOT NULL,
    batch           uuid NOT NULL,
    n               smallint NOT NULL,
    endpoint_id     uuid NOT NULL,
    hour            timestamptz NOT NULL,
    result          text NOT NULL,
    count           bigint NOT NULL,
    took            bigint[] NOT NULL,
    PRIMARY KEY (organization_id, batch, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
COMMENT ON TABLE webhook_traffic_deltas IS 'tenant: additions to webhook_traffic, appended by commits, folded and deleted every ten seconds';
COMMENT ON COLUMN webhook_traffic_deltas.batch IS 'distinguishes commits';

CREATE TABLE webhook_traffic (
    organization_id uuid NOT NULL,
    endpoint_id     uuid NOT NULL,
    hour            timestamptz NOT NULL,
    result          text NOT NULL,
    count           bigint NOT NULL,
    took            bigint[] NOT NULL,
    PRIMARY KEY (organization_id, endpoint_id, hour, result)
) WITH (fillfactor = 70);
CREATE INDEX webhook_traffic_age ON webhook_traffic USING brin (hour) WITH (autosummarize = on);
COMMENT ON TABLE webhook_traffic IS 'tenant: attempts to an endpoint by hour and result, the source of its page';
COMMENT ON COLUMN webhook_traffic.took IS 'histogram of durations';


-- -- Exports ----------------------------------------------------------------------------------------------------------

CREATE TABLE exports (
    organization_id uuid NOT NULL CONSTRAINT exports_organization REFERENCES organizations,
    id              uuid NOT NULL,
    mode            text NOT NULL CHECK (mode IN ('live', 'test')),
    kind            text NOT NULL CHECK (kind IN ('messages', 'contacts', 'audit', 'usage', 'opt_outs', 'rejects', 'skipped', 'cancel', 'tag')),
    user_id         uuid NOT NULL,
    author          text NOT NULL,
    wanted          text NOT NULL,
    state           text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished', 'stopped', 'failed', 'erased')),
    place           text,
    rows            integer NOT NULL DEFAULT 0,
    size            bigint NOT NULL DEFAULT 0,
    chunks          integer NOT NULL DEFAULT 0,
    is_cut          boolean NOT NULL DEFAULT false,
    tries           smallint NOT NULL DEFAULT 0,
    worker          uuid,
    lease_until     timestamptz,
    created_at      timestamptz NOT NULL,
    finished_at     timestamptz,
    PRIMARY KEY (organization_id, id)
);
CREATE INDEX exports_due ON exports (organization_id, id) WHERE state = 'running';
COMMENT ON TABLE exports IS 'tenant: files that members requested, and changes to everything that matches a list''s filters, processed by workers page by page; deleted after a week, or at once when a person of the organization is erased';
COMMENT ON COLUMN exports.wanted IS 'JSON: filters, format, and what its reader may see in it';
COMMENT ON COLUMN exports.place IS 'id of the last row examined; advances in the commit that writes its chunk';
COMMENT ON COLUMN exports.is_cut IS 'it ended at the maximum size of a file';

CREATE TABLE export_chunks (
    organization_id uuid NOT NULL,
    export_id       uuid NOT NULL,
    number          integer NOT NULL,
    bytes           bytea NOT NULL,
    PRIMARY KEY (organization_id, export_id, number)
);
COMMENT ON TABLE export_chunks IS 'tenant: contents of an export written so far; deleted with it';


-- -- Traffic ----------------------------------------------------------------------------------------------------------
-- Messages counted by the hour of acceptance and by current status. Histograms are arrays of counts: element n, from
-- 0, is for durations from 2^n to 2^(n+1) milliseconds.

CREATE TABLE traffic_deltas (
    organization_id uuid NOT NULL,
    batch           uuid NOT NULL,
    n               smallint NOT NULL,
    hour            timestamptz NOT NULL,
    channel         text NOT NULL,
    mode            text NOT NULL,
    country         text NOT NULL,
    sender          text NOT NULL,
    supplier_id     uuid NOT NULL,
    status          text NOT NULL,
    count           bigint NOT NULL,
    segments        bigint NOT NULL,
    to_sent         bigint[] NOT NULL DEFAULT '{}',
    to_delivered    bigint[] NOT NULL DEFAULT '{}',
    campaign_id     uuid,
    key_id          uuid,
    refunds         bigint NOT NULL DEFAULT 0,
    refunded        bigint NOT NULL DEFAULT 0,
    reason          text NOT NULL DEFAULT '',
    PRIMARY KEY (organization_id, batch, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
COMMENT ON TABLE traffic_deltas IS 'tenant: changes of traffic and usage, appended by commits, folded and deleted every ten seconds';
COMMENT ON COLUMN traffic_deltas.batch IS 'distinguishes commits';
COMMENT ON COLUMN traffic_deltas.campaign_id IS 'only usage distinguishes it, and the key; known when messages are accepted';
COMMENT ON COLUMN traffic_deltas.refunds IS 'messages refunded in the hour; such a row does not change traffic. refunded: their segments';
COMMENT ON COLUMN traffic_deltas.reason IS 'the failure code, for failed messages';

CREATE TABLE traffic (
    organization_id uuid NOT NULL,
    hour            timestamptz NOT NULL,
    channel         text NOT NULL CHECK (channel IN ('sms', 'whatsapp')),
    mode            text NOT NULL CHECK (mode IN ('live', 'test')),
    country         text NOT NULL,
    sender          text NOT NULL,
    supplier_id     uuid NOT NULL,
    status          text NOT NULL,
    count           bigint NOT NULL,
    segments        bigint NOT NULL,
    to_sent         bigint[] NOT NULL,
    to_delivered    bigint[] NOT NULL,
    PRIMARY KEY (organization_id, hour, channel, mode, country, sender, supplier_id, status)
) WITH (fillfactor = 70);
-- The last hours of all organizations, for the wall. The hour of a row never changes: folding into an existing row does
-- not touch the index, and new rows are added at its end.
CREATE INDEX traffic_hour ON traffic (hour);
COMMENT ON TABLE traffic IS 'tenant: roll-ups of outbound messages, the source of charts and bills';
COMMENT ON COLUMN traffic.hour IS 'hour of acceptance';
COMMENT ON COLUMN traffic.sender IS 'sender of an SMS; for WhatsApp, the id of the number';
COMMENT ON COLUMN traffic.supplier_id IS 'zeros: not accepted by a supplier yet, or WhatsApp';
COMMENT ON COLUMN traffic.status IS 'accepted stands for all messages waiting to be sent';
COMMENT ON COLUMN traffic.to_sent IS 'in the row of status sent: how long messages took from acceptance, or from when they were due, to the supplier; includes those that have moved on. to_delivered likewise';

CREATE TABLE traffic_days (
    organization_id uuid NOT NULL,
    day             date NOT NULL,
    channel         text NOT NULL,
    mode            text NOT NULL,
    country         text NOT NULL,
    sender          text NOT NULL,
    status          text NOT NULL,
    count           bigint NOT NULL,
    segments        bigint NOT NULL,
    to_sent         bigint[] NOT NULL,
    to_delivered    bigint[] NOT NULL,
    PRIMARY KEY (organization_id, day, channel, mode, country, sender, status)
) WITH (fillfactor = 70);
COMMENT ON TABLE traffic_days IS 'tenant: traffic, summed over the hours of a day (UTC) and over suppliers; folded with it';

CREATE TABLE traffic_organizations (
    organization_id uuid NOT NULL,
    day             date NOT NULL,
    status          text NOT NULL,
    count           bigint NOT NULL,
    PRIMARY KEY (organization_id, day, status)
) WITH (fillfactor = 70);
COMMENT ON TABLE traffic_organizations IS 'tenant: live traffic by day (UTC) and status only, for lists of organizations; folded with it';

CREATE TABLE failure_counts (
    organization_id uuid NOT NULL,
    hour            timestamptz NOT NULL,
    channel         text NOT NULL CHECK (channel IN ('sms', 'whatsapp')),
    mode            text NOT NULL CHECK (mode IN ('live', 'test')),
    country         text NOT NULL,
    reason          text NOT NULL,
    count           bigint NOT NULL,
    PRIMARY KEY (organization_id, hour, channel, mode, country, reason)
) WITH (fillfactor = 70);
COMMENT ON TABLE failure_counts IS 'tenant: why messages failed, by the hour in which they were accepted; the sum over reasons equals that of traffic';

CREATE TABLE reconciliation_deltas (
    batch       uuid NOT NULL,
    n           smallint NOT NULL,
    supplier_id uuid NOT NULL,
    hour        timestamptz NOT NULL,
    country     text NOT NULL,
    network     text NOT NULL,
    what        text NOT NULL,
    currency    text NOT NULL DEFAULT '',
    count       bigint NOT NULL,
    segments    bigint NOT NULL,
    charged     bigint NOT NULL DEFAULT 0,
    to_receipt  bigint[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (batch, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
COMMENT ON TABLE reconciliation_deltas IS 'control: changes to the reconciliation with suppliers, appended by commits, folded and deleted every ten seconds';
COMMENT ON COLUMN reconciliation_deltas.batch IS 'distinguishes commits';

CREATE TABLE reconciliation (
    day         date NOT NULL,
    hour        timestamptz NOT NULL,
    supplier_id uuid NOT NULL,
    country     text NOT NULL,
    network     text NOT NULL,
    what        text NOT NULL CHECK (what IN ('accepted', 'refused', 'busy', 'unknown', 'unreachable', 'delivered',
                                              'undelivered', 'failed', 'expired', 'rejected', 'late', 'never',
                                              'orphaned', 'recipient', 'doubled')),
    currency    text NOT NULL DEFAULT '',
    count       bigint NOT NULL,
    segments    bigint NOT NULL,
    charged     bigint NOT NULL DEFAULT 0,
    to_receipt  bigint[] NOT NULL,
    PRIMARY KEY (day, hour, supplier_id, country, network, what, currency)
) PARTITION BY RANGE (day);
CREATE INDEX reconciliation_age ON reconciliation USING brin (hour) WITH (autosummarize = on);
CREATE TABLE reconciliation_rest PARTITION OF reconciliation DEFAULT;
COMMENT ON TABLE reconciliation IS 'control: what suppliers were handed, answered and reported, by hour and country, for comparison with their bills. Live SMS only';
COMMENT ON COLUMN reconciliation.hour IS 'hour in which the supplier accepted the message; for other answers, in which they arrived; for orphans, that of the receipt';
COMMENT ON COLUMN reconciliation.country IS 'ISO region of the calling code; 001: none; for orphans as their number suggests, empty: none';
COMMENT ON COLUMN reconciliation.network IS 'MCC-MNC of accepted messages; empty: not known, or not accepted';
COMMENT ON COLUMN reconciliation.what IS 'see traffic/reconciliation.py';
COMMENT ON COLUMN reconciliation.currency IS 'in which the supplier charges for these messages; empty: not known, or nothing was accepted';
COMMENT ON COLUMN reconciliation.charged IS 'millionths: for accepted or doubled messages, due on acceptance; for delivered ones, due on delivery; for undelivered ones, the part of the former that is due back';
COMMENT ON COLUMN reconciliation.to_receipt IS 'for messages ended by a receipt: how long it took after the answer';

CREATE TABLE reconciliation_days (
    day         date NOT NULL,
    supplier_id uuid NOT NULL,
    country     text NOT NULL,
    what        text NOT NULL,
    currency    text NOT NULL DEFAULT '',
    count       bigint NOT NULL,
    segments    bigint NOT NULL,
    charged     bigint NOT NULL DEFAULT 0,
    to_receipt  bigint[] NOT NULL,
    PRIMARY KEY (day, supplier_id, country, what, currency)
);
COMMENT ON TABLE reconciliation_days IS 'control: reconciliation, summed over the hours of a day and over networks; folded with it';

-- Costs and prices of messages, by the day (UTC) on which they became due.
CREATE TABLE margin_deltas (
    organization_id uuid NOT NULL,
    batch           uuid NOT NULL,
    n               smallint NOT NULL,
    day             date NOT NULL,
    supplier_id     uuid NOT NULL,
    country         text NOT NULL,
    network         text NOT NULL,
    route           text NOT NULL,
    price_currency  text NOT NULL,
    cost_currency   text NOT NULL,
    messages        bigint NOT NULL,
    segments        bigint NOT NULL,
    price           bigint NOT NULL,
    cost            bigint NOT NULL,
    PRIMARY KEY (organization_id, batch, n)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
COMMENT ON TABLE margin_deltas IS 'tenant: changes to margins, appended by commits, folded and deleted every ten seconds';
COMMENT ON COLUMN margin_deltas.batch IS 'distinguishes commits';

CREATE TABLE margins (
    organization_id uuid NOT NULL,
    day             date NOT NULL,
    supplier_id     uuid NOT NULL,
    country         text NOT NULL,
    network         text NOT NULL,
    route           text NOT NULL,
    price_currency  text NOT NULL,
    cost_currency   text NOT NULL,
    messages        bigint NOT NULL,
    segments        bigint NOT NULL,
    price           bigint NOT NULL,
    cost            bigint NOT NULL,
    PRIMARY KEY (organization_id, day, supplier_id, country, network, route, price_currency, cost_currency)
) WITH (fillfactor = 70);
COMMENT ON TABLE margins IS 'tenant: live SMS accepted by suppliers, by day, with the amounts that became due on it. Excludes what margin_deltas still holds. For operators, never for customers';
COMMENT ON COLUMN margins.network IS 'MCC-MNC; empty: not known';
COMMENT ON COLUMN margins.route IS 'name of the route that chose the supplier, as it was when the supplier accepted the message; empty: no route did, or it is not known';
COMMENT ON COLUMN margins.price_currency IS 'empty: there was no price. The same for cost_currency';
COMMENT ON COLUMN margins.messages IS 'handed over on the day; amounts due only on delivery may belong to another day''s messages';

-- Sums of margins, folded with them: queries over all organizations must not read the rows of each.
CREATE TABLE margin_days (
    day             date NOT NULL,
    supplier_id     uuid NOT NULL,
    country         text NOT NULL,
    network         text NOT NULL,
    route           text NOT NULL,
    price_currency  text NOT NULL,
    cost_currency   text NOT NULL,
    messages        bigint NOT NULL,
    segments        bigint NOT NULL,
    price           bigint NOT NULL,
    cost            bigint NOT NULL,
    PRIMARY KEY (day, supplier_id, country, network, route, price_currency, cost_currency)
) WITH (fillfactor = 70);
COMMENT ON TABLE margin_days IS 'control: margins, summed over organizations';

CREATE TABLE margin_organizations (
    organization_id uuid NOT NULL,
    day             date NOT NULL,
    price_currency  text NOT NULL,
    cost_currency   text NOT NULL,
    messages        bigint NOT NULL,
    segments        bigint NOT NULL,
    price           bigint NOT NULL,
    cost            bigint NOT NULL,
    PRIMARY KEY (organization_id, day, price_currency, cost_currency)
) WITH (fillfactor = 70);
CREATE INDEX margin_organizations_day ON margin_organizations (day);
COMMENT ON TABLE margin_organizations IS 'tenant: margins, summed over suppliers and destinations. For operators, never for customers';


-- -- Requests ---------------------------------------------------------------------------------------------------------
-- Requests to the API and to the dashboard, and their outcome.

CREATE TABLE requests (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    mode            text NOT NULL CHECK (mode IN ('live', 'test')),
    key_id          uuid,
    person_id       uuid,
    method          text NOT NULL,
    path            text NOT NULL,
    operation       text NOT NULL,
    status          smallint NOT NULL,
    error_code      text NOT NULL DEFAULT '',
    duration_ms     integer NOT NULL,
    address         text NOT NULL,
    agent           text NOT NULL,
    request_id      text NOT NULL,
    idempotency     text NOT NULL DEFAULT '' CHECK (idempotency IN ('', 'stored', 'replayed', 'conflict')),
    key_hash        uuid,
    body            text NOT NULL DEFAULT '',
    answer          text NOT NULL DEFAULT '',
    at              timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (organization_id, id)
) PARTITION BY RANGE (id);
CREATE INDEX requests_by_request ON requests (organization_id, request_id);
CREATE INDEX requests_by_key_hash ON requests (organization_id, key_hash) WHERE key_hash IS NOT NULL;
CREATE TABLE requests_rest PARTITION OF requests DEFAULT;
COMMENT ON TABLE requests IS 'tenant: refused requests, and those that changed something; accepted sends are in their message''s row. A log: each process writes it once a second, outside the path of a response';
COMMENT ON COLUMN requests.path IS 'below /v1, or of the dashboard; variable parts are kept only if they are ids';
COMMENT ON COLUMN requests.operation IS 'operationId; for the dashboard, the route';
COMMENT ON COLUMN requests.key_hash IS 'as in idempotency: finds other requests with the same key';
COMMENT ON COLUMN requests.body IS 'as received, with texts and numbers blanked; empty: none, or too long to keep';
COMMENT ON COLUMN requests.answer IS 'response of a refusal, with numbers blanked';
COMMENT ON COLUMN requests.at IS 'when it was recorded; the id holds the time of the response';

CREATE TABLE request_counts (
    organization_id uuid NOT NULL,
    hour            timestamptz NOT NULL,
    mode            text NOT NULL,
    operation       text NOT NULL,
    status          smallint NOT NULL,
    error_code      text NOT NULL,
    count           bigint NOT NULL,
    first_at        timestamptz NOT NULL,
    last_at         timestamptz NOT NULL,
    PRIMARY KEY (organization_id, hour, mode, operation, status, error_code)
) WITH (fillfactor = 70);
CREATE INDEX request_counts_age ON request_counts USING brin (hour) WITH (autosummarize = on);
COMMENT ON TABLE request_counts IS 'tenant: all requests with a key, by hour and outcome; a process that is killed loses its last second';


-- -- The guard against SMS pumping ------------------------------------------------------------------------------------

CREATE TABLE organization_notes (
    organization_id uuid NOT NULL CONSTRAINT organization_notes_organization REFERENCES organizations,
    id              uuid NOT NULL,
    author          text NOT NULL,
    body            text NOT NULL,
    created_at      timestamptz NOT NULL,
    PRIMARY KEY (organization_id, id)
);
COMMENT ON TABLE organization_notes IS 'tenant: operators'' notes about an organization, which never sees them; kept until an operator removes them, or the person whose number they contain is erased';
COMMENT ON COLUMN organization_notes.author IS 'name of the operator at that time';

CREATE TABLE guard_settings (
    organization_id uuid PRIMARY KEY CONSTRAINT guard_settings_organization REFERENCES organizations,
    policy          text CHECK (policy IN ('monitor', 'hold', 'refuse', 'ask')),
    safe            text[] NOT NULL DEFAULT '{}',
    event_until     timestamptz,
    limits          jsonb NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE guard_settings IS 'tenant: how suspicious traffic is handled, for organizations with settings of their own';
COMMENT ON COLUMN guard_settings.policy IS 'NULL: monitor in an organization''s first two weeks, then hold';
COMMENT ON COLUMN guard_settings.event_until IS 'end of an announced event: until then ten times as many messages are considered usual';
COMMENT ON COLUMN guard_settings.limits IS 'messages of a class allowed in ten minutes, by class; none by default';
COMMENT ON COLUMN guard_settings.safe IS 'leading digits, without the plus, of numbers that are never held';

CREATE TABLE guard_holds (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    range           text NOT NULL,
    kind            text NOT NULL CHECK (kind IN ('block', 'country', 'number', 'class')),
    rules           text[] NOT NULL,
    score           smallint NOT NULL,
    policy          text NOT NULL,
    begun_at        timestamptz NOT NULL,
    until           timestamptz NOT NULL,
    released_at     timestamptz,
    PRIMARY KEY (organization_id, id)
);
CREATE INDEX guard_holds_by_range ON guard_holds (organization_id, range, begun_at);
CREATE INDEX guard_holds_standing ON guard_holds (until) WHERE released_at IS NULL;
COMMENT ON TABLE guard_holds IS 'tenant: ranges that the guard found suspicious, kept for a month';
COMMENT ON COLUMN guard_holds.range IS 'for a block, the digits before the last four; for a country, its ISO code; for a class, its name; otherwise all digits of a number';
COMMENT ON COLUMN guard_holds.until IS 'messages to it are held until then, or until it is released; those already held stay held';

CREATE TABLE guard_held (
    organization_id uuid NOT NULL,
    message_id      uuid NOT NULL,
    hold_id         uuid NOT NULL,
    held_at         timestamptz NOT NULL,
    released_at     timestamptz,
    PRIMARY KEY (organization_id, message_id)
);
CREATE INDEX guard_held_by_hold ON guard_held (organization_id, hold_id);
CREATE INDEX guard_held_waiting ON guard_held (organization_id) WHERE released_at IS NULL;
COMMENT ON TABLE guard_held IS 'tenant: messages to which a hold applied, kept for a month. Whether one is still waiting is known only to the queue';
COMMENT ON COLUMN guard_held.released_at IS 'when it was released; equal to held_at if holds were only recorded';

CREATE TABLE guard_seen (
    organization_id uuid NOT NULL,
    id              uuid NOT NULL,
    worker_id       uuid NOT NULL,
    class           text NOT NULL,
    at              timestamptz NOT NULL,
    numbers         bigint[] NOT NULL,
    places          bigint[] NOT NULL CHECK (cardinality(places) = cardinality(numbers)),
    PRIMARY KEY (organization_id, id)
);
CREATE INDEX guard_seen_by_time ON guard_seen (at);
COMMENT ON TABLE guard_seen IS 'tenant: what workers tell each other about recent messages, kept for ten minutes';
COMMENT ON COLUMN guard_seen.numbers IS 'numbers of one second; places: each message''s place in the order of acceptance';

CREATE TABLE guard_challenges (
    organization_id uuid NOT NULL,
    message_id      uuid NOT NULL,
    passed_at       timestamptz NOT NULL,
    PRIMARY KEY (organization_id, message_id)
);
CREATE INDEX guard_challenges_age ON guard_challenges (passed_at);
COMMENT ON TABLE guard_challenges IS 'tenant: messages whose recipients passed a challenge, according to their sender; some were refused nevertheless. Kept as long as a message may be scheduled ahead';

CREATE TABLE guard_conversions (
    organization_id uuid NOT NULL,
    message_id      uuid NOT NULL,
    recipient       text NOT NULL,
    mode            text NOT NULL,
    converted_at    timestamptz NOT NULL,
    PRIMARY KEY (organization_id, message_id)
);
CREATE INDEX guard_conversions_age ON guard_conversions (converted_at);
COMMENT ON TABLE guard_conversions IS 'tenant: messages whose code was entered, according to their organization, kept for a month. Workers read the newest every second';


-- -- Work -------------------------------------------------------------------------------------------------------------

CREATE TABLE queue (
    id              uuid NOT NULL,
    kind            text NOT NULL,
    line            uuid NOT NULL,
    lane            smallint NOT NULL DEFAULT 0,
    organization_id uuid NOT NULL,
    due_at          timestamptz NOT NULL,
    tries           smallint NOT NULL DEFAULT 0,
    claims          smallint NOT NULL DEFAULT 0,
    lease_until     timestamptz,
    lease_token     uuid,
    attempt         smallint NOT NULL DEFAULT 0,
    begun_at        timestamptz,
    target_id       uuid,
    reference       integer,
    continues       smallint,
    parts           smallint NOT NULL DEFAULT 1,
    decision        bigint,
    since           timestamptz,
    passed          uuid[],
    PRIMARY KEY (id, line)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);
CREATE INDEX queue_place ON queue (kind, line, lane, organization_id, (coalesce(since, due_at)));
CREATE INDEX queue_due ON queue (due_at);
COMMENT ON TABLE queue IS 'control: work to be done; narrow rows, deleted when done';
COMMENT ON COLUMN queue.line IS 'a supplier or an endpoint; lines are served in turn. No line is used by two kinds for one id';
COMMENT ON COLUMN queue.lane IS '0 goes before 1';
COMMENT ON COLUMN queue.due_at IS 'earliest time of a claim; never before the start of the transaction that wrote it, since workers read due work in order of time';
COMMENT ON COLUMN queue.since IS 'its place in the line, if earlier than due_at because it was put back to wait';
COMMENT ON COLUMN queue.passed IS 'suppliers that an operator excluded for this message; checked from the second try on';
COMMENT ON COLUMN queue.claims IS 'number of claims; from the second on, earlier tries may have had effects';
COMMENT ON COLUMN queue.attempt IS 'the last attempt of a message; 0: none. The following columns belong to that attempt, as in attempts';
COMMENT ON COLUMN queue.begun_at IS 'start of the attempt under way: the intention committed before the first byte; NULL: it has ended, and is in attempts';

CREATE TABLE attempts (
    organization_id     uuid NOT NULL,
    message_id          uuid NOT NULL,
    attempt             smallint NOT NULL,
    target_id           uuid NOT NULL,
    state               attempt_state NOT NULL,
    started_at          timestamptz NOT NULL,
    ended_at            timestamptz NOT NULL,
    reference           integer,
    continues           smallint,
    parts               smallint NOT NULL DEFAULT 1,
    doubtful            smallint[],
    decision            bigint,
    code                text NOT NULL DEFAULT '',
    detail              text NOT NULL DEFAULT '',
    supplier_message_id text,
    recipient_suffix    text,
    cost                bigint,
    cost_currency       text,
    cost_due            text,
    sent_as             text,
    PRIMARY KEY (organization_id, message_id, attempt)
) PARTITION BY RANGE (message_id);
-- For receipts. The supplier comes last: see receipts. The suffix is there for suppliers that give many messages one id.
CREATE INDEX attempts_by_supplier_message_id ON attempts (supplier_message_id, recipient_suffix, target_id)
    WHERE supplier_message_id IS NOT NULL;
CREATE INDEX attempts_age ON attempts USING brin (ended_at) WITH (autosummarize = on);
CREATE TABLE attempts_rest PARTITION OF attempts DEFAULT;
COMMENT ON TABLE attempts IS 'tenant: the outcome of each attempt to hand a message over. An attempt under way is in its queue row';
COMMENT ON COLUMN attempts.target_id IS 'the supplier, or the WhatsApp number, it was handed to';
COMMENT ON COLUMN attempts.continues IS 'the first attempt of the series that this one completes: if the supplier has some segments of a long message, the rest is sent under the same reference, and segments are recorded under that attempt; NULL: it begins a series';
COMMENT ON COLUMN attempts.decision IS 'why its supplier was chosen: see route_decisions';
COMMENT ON COLUMN attempts.parts IS 'number of segments of the whole message in this supplier''s encoding';
COMMENT ON COLUMN attempts.supplier_message_id IS 'for an SMS of one part, the supplier''s id by which receipts are matched; those of several parts are in sms_parts. Suppliers reuse ids (wrap, restart)';
COMMENT ON COLUMN attempts.recipient_suffix IS 'end of the recipient''s number, which a receipt with this id must match';
COMMENT ON COLUMN attempts.cost IS 'millionths, by the supplier''s rate card when it was handed over; owed if it was accepted. NULL: not known, also if its worker died';
COMMENT ON COLUMN attempts.sent_as IS 'the sender actually used, if the supplier''s rules replace the message''s; NULL: unchanged, or not known';
COMMENT ON COLUMN attempts.doubtful IS 'for an attempt of unknown outcome, segments written without a response; NULL: all of them';

CREATE TABLE queue_holds (
    id              uuid PRIMARY KEY,
    kind            text NOT NULL CHECK (kind IN ('sms', 'whatsapp', 'webhook')),
    line            uuid,
    organization_id uuid,
    before_id       uuid,
    before          timestamptz,
    reason          text NOT NULL DEFAULT '' CHECK (length(reason) <= 500),
    made_by         text NOT NULL DEFAULT '',
    restored        boolean NOT NULL DEFAULT false,
    created_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT queue_holds_before CHECK ((before IS NULL) = (before_id IS NULL))
);
COMMENT ON TABLE queue_holds IS 'control: work held by operators, read by every claim: by kind, line (supplier, number, endpoint), organization and age; all given conditions must match';
COMMENT ON COLUMN queue_holds.made_by IS 'name of the operator, or of the user at a shell; empty: a restore';
COMMENT ON COLUMN queue_holds.restored IS 'made by a restore: the work that it holds may have been sent after the backup, so none of it expires meanwhile';

CREATE TABLE timers (
    name       text PRIMARY KEY,
    next_at    timestamptz NOT NULL,
    done_until timestamptz
);
COMMENT ON TABLE timers IS 'control: periodic work; the worker that moves next_at runs it';
COMMENT ON COLUMN timers.done_until IS 'progress of a sweep through time; for retention: when the last round began that left nothing to delete';

CREATE TABLE workers (
    id          uuid PRIMARY KEY,
    name        text NOT NULL,
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL,
    clock_ahead double precision NOT NULL DEFAULT 0,
    version     text NOT NULL DEFAULT '',
    memory      bigint,
    drain       text CHECK (drain IN ('end', 'stay')),
    drained_at  timestamptz,
    secret_keys bytea[] NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE workers IS 'control: living worker processes, for health checks';
COMMENT ON COLUMN workers.clock_ahead IS 'seconds by which its machine''s clock is ahead of the database''s';
COMMENT ON COLUMN workers.memory IS 'bytes in use; NULL: its system does not report it';
COMMENT ON COLUMN workers.drain IS 'an operator told it to take no more work, and then to end, or to stay until told otherwise; NULL: it takes work';
COMMENT ON COLUMN workers.drained_at IS 'since when it has been drained and idle';
COMMENT ON COLUMN workers.secret_keys IS 'fingerprints of its secret keys, the one that encrypts first; empty: unknown';

CREATE TABLE web_processes (
    id          uuid PRIMARY KEY,
    name        text NOT NULL,
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL,
    version     text NOT NULL,
    memory      bigint,
    metrics     text NOT NULL,
    accepting   bigint[] NOT NULL,
    secret_keys bytea[] NOT NULL DEFAULT '{}'
);
COMMENT ON TABLE web_processes IS 'control: living web processes, for operators';
COMMENT ON COLUMN web_processes.memory IS 'bytes in use; NULL: its system does not report it';
COMMENT ON COLUMN web_processes.metrics IS 'where its metrics are served; empty: nowhere';
COMMENT ON COLUMN web_processes.accepting IS 'messages of the last minute by how long accepting them took (at most): a histogram as in traffic';
COMMENT ON COLUMN web_processes.secret_keys IS 'as those of workers';

CREATE TABLE findings (
    id      uuid PRIMARY KEY,
    name    text NOT NULL,
    state   text NOT NULL CHECK (state IN ('warning', 'failed')),
    told    text NOT NULL,
    detail  text NOT NULL,
    since   timestamptz NOT NULL,
    over_at timestamptz
);
CREATE UNIQUE INDEX findings_open ON findings (name, state) WHERE over_at IS NULL;
CREATE INDEX findings_over ON findings (over_at) WHERE over_at IS NOT NULL;
COMMENT ON TABLE findings IS 'control: problems found by checks of the installation, with their beginning and end; kept for a month after they are over';
COMMENT ON COLUMN findings.name IS 'name of the check, in English';
COMMENT ON COLUMN findings.told IS 'the same as a sentence with its values, for translation. detail likewise, as last seen';
COMMENT ON COLUMN findings.over_at IS 'when a check no longer found it; NULL: it persists';

CREATE TABLE database_sizes (
    day   date PRIMARY KEY,
    bytes bigint NOT NULL,
    free  bigint
);
COMMENT ON TABLE database_sizes IS 'control: size of the database at the end of each day (UTC), for forecasts';
COMMENT ON COLUMN database_sizes.free IS 'free bytes on its disk; NULL: the database is on another machine';

CREATE TABLE backups (
    id          uuid PRIMARY KEY,
    kind        text NOT NULL CHECK (kind IN ('cluster', 'dump')),
    taken_at    timestamptz NOT NULL,
    finished_at timestamptz NOT NULL,
    bytes       bigint NOT NULL,
    place       text NOT NULL,
    archive     text NOT NULL,
    first_wal   text NOT NULL,
    verified_at timestamptz,
    secret_keys bytea[] NOT NULL DEFAULT '{}'
);
CREATE INDEX backups_by_time ON backups (taken_at);
COMMENT ON TABLE backups IS 'control: completed backups; they may have been removed since';
COMMENT ON COLUMN backups.taken_at IS 'it contains everything answered before';
COMMENT ON COLUMN backups.place IS 'its directory, on the machine where it was taken';
COMMENT ON COLUMN backups.archive IS 'directory of archived WAL that continues it, named after its cluster; empty: a dump';
COMMENT ON COLUMN backups.first_wal IS 'first WAL segment that restoring it needs; empty: a dump';
COMMENT ON COLUMN backups.verified_at IS 'when it was last test-restored in a scratch directory; NULL: never';
COMMENT ON COLUMN backups.secret_keys IS 'fingerprints of the secret keys that it contains';

CREATE TABLE retention_places (
    name       text PRIMARY KEY,
    done_until timestamptz NOT NULL,
    mark       jsonb
);
COMMENT ON TABLE retention_places IS 'control: progress of retention in a table, so that no round repeats an earlier one';
COMMENT ON COLUMN retention_places.mark IS 'the last key, for a sweep by keys';
