-- sms_accept_bulk: accept messages of one organization, sender and campaign, all of them or none.
--
-- Writes the same rows as `sms_accept`, with the same accounting, but without idempotency keys and rate windows; the
-- caller has checked each recipient. The balance's row, which serializes all accepts of the organization, is locked as
-- late as possible; it is needed because a message's row records the quota that remained.
--
-- p_text may be shorter than the others: p_body replaces missing texts. Returns the remaining quota, or NULL if it does
-- not cover all messages; then nothing is stored. p_validity: how long a message is worth delivering once it is due;
-- NULL: the horizon of the retry schedule. Test messages use none and return the current quota.
CREATE OR REPLACE FUNCTION sms_accept_bulk(
    p_at timestamptz, p_organization uuid, p_billed boolean, p_sender text, p_sender_id uuid, p_campaign uuid,
    p_guarantee text, p_request_id text, p_lane smallint, p_body text,
    p_id uuid[], p_recipient text[], p_country text[], p_text text[], p_encoding text[], p_segments smallint[],
    p_due timestamptz[], p_class text, p_validity interval, p_price bigint[], p_price_currency text[], p_price_due text[]
) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    v_count int := cardinality(p_id);
    v_left bigint;
    v_room bigint;
    v_segments bigint := (SELECT sum(one) FROM unnest(p_segments) AS one);
    v_today date := (now() AT TIME ZONE 'UTC')::date;
    -- The key that created the campaign: a limit of that key covers what it sends this way, too.
    v_key uuid := (SELECT author_id FROM campaigns
                    WHERE organization_id = p_organization AND id = p_campaign AND author_kind = 'key');
BEGIN
    -- Live messages have no supplier yet (line 0); test messages go straight to the supplier of test keys (line 1).
    INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
    SELECT 'sms', CASE WHEN p_billed THEN '00000000-0000-0000-0000-000000000000'::uuid
                       ELSE '00000000-0000-0000-0000-000000000001'::uuid END,
           p_lane, p_organization, greatest(due, p_at), id
      FROM unnest(p_id, p_due) AS item (id, due);

    IF p_billed THEN
        UPDATE quotas SET used = used + v_count
         WHERE organization_id = p_organization AND total - used >= v_count
        RETURNING total - used INTO v_left;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the quota does not cover this' USING ERRCODE = 'HG001';
        END IF;
        WITH counted AS (
            UPDATE spend_limits
               SET used = CASE WHEN day - v_today IN (0, 1) THEN used ELSE 0 END + v_segments,
                   day = CASE WHEN day - v_today IN (0, 1) THEN day ELSE v_today END
             WHERE organization_id = p_organization AND key_id IN ('00000000-0000-0000-0000-000000000000', v_key)
            RETURNING segments - used AS room
        )
        SELECT min(room) INTO v_room FROM counted;
        IF v_room < 0 THEN
            RAISE EXCEPTION 'the limit of the day does not cover this' USING ERRCODE = 'HG001';
        END IF;
    ELSE
        SELECT total - used INTO v_left FROM quotas WHERE organization_id = p_organization;
        v_left := coalesce(v_left, 0);
    END IF;

    INSERT INTO messages (organization_id, id, mode, status, recipient, sender, sender_id, encoding, segments, class,
                          guarantee, country, body, campaign_id, request_id, balance_after, price, price_currency, price_due,
                          accepted_at, expires_at)
    SELECT p_organization, id, CASE WHEN p_billed THEN 'live' ELSE 'test' END, 'accepted', recipient, p_sender,
           p_sender_id, encoding, segments, p_class, p_guarantee, country, coalesce(said, p_body), p_campaign, p_request_id,
           CASE WHEN p_billed THEN v_left + v_count - n ELSE v_left END, price, price_currency, price_due, p_at,
           greatest(due, p_at) + p_validity
      FROM unnest(p_id, p_recipient, p_country, p_text, p_encoding, p_segments, p_due, p_price, p_price_currency,
                  p_price_due) WITH ORDINALITY
           AS item (id, recipient, country, said, encoding, segments, due, price, price_currency, price_due, n);
    INSERT INTO traffic_deltas (organization_id, batch, n, hour, channel, mode, country, sender, supplier_id, status,
                                count, segments, campaign_id)
    SELECT p_organization, (array_agg(id))[1], 0, date_trunc('hour', p_at, 'UTC'), 'sms',
           CASE WHEN p_billed THEN 'live' ELSE 'test' END, country, p_sender,
           '00000000-0000-0000-0000-000000000000', 'accepted', count(*), sum(segments), p_campaign
      FROM unnest(p_id, p_country, p_segments) AS item (id, country, segments) GROUP BY country;
    RETURN v_left;
EXCEPTION WHEN SQLSTATE 'HG001' THEN
    RETURN NULL;
END $$;
