-- Campaigns: one text for many recipients, staged into messages chunk by chunk.
--
-- The counts of a campaign are disjoint and add up to its total at every commit; the CHECK says so. They are moved by
-- differences: a chunk keeps what was last counted of its own messages, which lie in one range of ids.
CREATE TABLE campaigns (
    organization_id         uuid NOT NULL REFERENCES organizations,
    id                      uuid NOT NULL,
    name                    text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    status                  text NOT NULL CHECK (status IN ('scheduled', 'staging', 'running', 'paused', 'completed',
                                                            'canceled', 'failed')),
    status_reason           text,
    mode                    text NOT NULL CHECK (mode IN ('live', 'test')),
    message_template        text NOT NULL,
    sender_id               uuid NOT NULL,
    audience_tags           text[],
    audience_tag_match_mode text NOT NULL CHECK (audience_tag_match_mode IN ('any', 'all')),
    messages_per_minute     integer CHECK (messages_per_minute > 0),
    request_id              text NOT NULL,
    scheduled_at            timestamptz,
    started_at              timestamptz,
    completed_at            timestamptz,
    created_at              timestamptz NOT NULL,

    total                   integer NOT NULL DEFAULT 0,
    pending                 integer NOT NULL DEFAULT 0 CHECK (pending >= 0),
    queued                  integer NOT NULL DEFAULT 0 CHECK (queued >= 0),
    sent                    integer NOT NULL DEFAULT 0 CHECK (sent >= 0),
    delivered               integer NOT NULL DEFAULT 0 CHECK (delivered >= 0),
    failed                  integer NOT NULL DEFAULT 0 CHECK (failed >= 0),
    unknown                 integer NOT NULL DEFAULT 0 CHECK (unknown >= 0),
    canceled                integer NOT NULL DEFAULT 0 CHECK (canceled >= 0),
    opted_out               integer NOT NULL DEFAULT 0 CHECK (opted_out >= 0),
    invalid                 integer NOT NULL DEFAULT 0 CHECK (invalid >= 0),

    step_at                 timestamptz,
    gather_tag              smallint NOT NULL DEFAULT 0,
    gather_after            uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    staged_to               text COLLATE "C" NOT NULL DEFAULT '',
    due_at                  timestamptz,
    drained_at              timestamptz,
    forgotten               boolean NOT NULL DEFAULT false,

    PRIMARY KEY (organization_id, id),
    CHECK (total = pending + queued + sent + delivered + failed + unknown + canceled + opted_out + invalid),
    CHECK ((status = 'completed') = (completed_at IS NOT NULL)),
    CHECK (status <> 'completed' OR (pending = 0 AND queued = 0))
) WITH (fillfactor = 50);
CREATE INDEX campaigns_step ON campaigns (organization_id, step_at) WHERE step_at IS NOT NULL;
CREATE INDEX campaigns_forget ON campaigns (organization_id, id)
    WHERE NOT forgotten AND status IN ('completed', 'canceled', 'failed');
COMMENT ON TABLE campaigns IS 'tenant: one text for many recipients, with maintained counts';
COMMENT ON COLUMN campaigns.audience_tags IS 'NULL: the recipients were listed';
COMMENT ON COLUMN campaigns.step_at IS 'when a worker has something to do for it; NULL: never again';
COMMENT ON COLUMN campaigns.staged_to IS 'the last recipient that has a message or was skipped; moves in the same commit';
COMMENT ON COLUMN campaigns.due_at IS 'when the next message is due, under messages_per_minute';
COMMENT ON COLUMN campaigns.drained_at IS 'since when nothing waits to be sent';
COMMENT ON COLUMN campaigns.forgotten IS 'its recipients were deleted, after its end';

-- The audience as it was at the start, each number once. What a text needs of a contact is kept here, so that the
-- contact may change or go meanwhile. Numbers sort bytewise: the cursor's order must not depend on a locale.
CREATE TABLE campaign_recipients (
    organization_id uuid NOT NULL,
    campaign_id     uuid NOT NULL,
    phone           text COLLATE "C" NOT NULL,
    name            text,
    first_name      text,
    last_name       text,
    PRIMARY KEY (organization_id, campaign_id, phone)
);
COMMENT ON TABLE campaign_recipients IS 'tenant: who gets a campaign, deleted after its end';

CREATE TABLE campaign_chunks (
    organization_id uuid NOT NULL,
    campaign_id     uuid NOT NULL,
    first_id        uuid NOT NULL,
    last_id         uuid NOT NULL,
    queued          integer NOT NULL,
    sent            integer NOT NULL DEFAULT 0,
    delivered       integer NOT NULL DEFAULT 0,
    failed          integer NOT NULL DEFAULT 0,
    unknown         integer NOT NULL DEFAULT 0,
    canceled        integer NOT NULL DEFAULT 0,
    withdrawn       boolean NOT NULL DEFAULT false,
    staged_at       timestamptz NOT NULL,
    changed_at      timestamptz NOT NULL,
    count_at        timestamptz NOT NULL,
    PRIMARY KEY (organization_id, campaign_id, first_id)
) WITH (fillfactor = 70);
CREATE INDEX campaign_chunks_due ON campaign_chunks (count_at);
COMMENT ON TABLE campaign_chunks IS 'tenant: messages staged together and what was last counted of them, until nothing more can change';
COMMENT ON COLUMN campaign_chunks.withdrawn IS 'the campaign was canceled, and what was not sent of this chunk is canceled too';
