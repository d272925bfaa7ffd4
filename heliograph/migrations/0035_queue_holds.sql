-- What an operator holds back: work of a kind, of one line (a supplier, a number, an endpoint), of one organization,
-- or made before a moment; all that is given must fit. It stays until it is released, whatever restarts.
CREATE TABLE queue_holds (
    id              uuid PRIMARY KEY,
    kind            text NOT NULL CHECK (kind IN ('sms', 'whatsapp', 'webhook')),
    line            uuid,
    organization_id uuid,
    before_id       uuid,
    before          timestamptz,
    reason          text NOT NULL DEFAULT '' CHECK (length(reason) <= 500),
    created_at      timestamptz NOT NULL DEFAULT now(),
    CHECK ((before IS NULL) = (before_id IS NULL))
);
COMMENT ON TABLE queue_holds IS 'control: work that operators hold back; read by every claim';
