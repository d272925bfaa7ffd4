-- sms_accept_bulk_1: accept messages of one organization, sender and campaign, all of them or none.
--
-- The same rows as `sms_accept_2` writes, and the same books; but there are no idempotency keys and no rate windows to
-- look at, and the caller has judged each recipient. The balance's row, on which all accepts of the organization take
-- turns, is locked last, so that a thousand messages hold up its single sends for the ledger and the commit only.
--
-- p_text may be shorter than the others: p_body stands for what is missing. Returns the remaining quota, or NULL if it
-- does not cover all of them; then nothing is stored. Test messages cost none and return what there is.
CREATE OR REPLACE FUNCTION sms_accept_bulk_1(
    p_at timestamptz, p_organization uuid, p_billed boolean, p_sender text, p_sender_id uuid, p_campaign uuid,
    p_guarantee text, p_request_id text, p_lane smallint, p_body text,
    p_id uuid[], p_recipient text[], p_text text[], p_encoding text[], p_segments smallint[], p_due timestamptz[]
) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    v_count int := cardinality(p_id);
    v_left bigint;
BEGIN
    INSERT INTO messages (organization_id, id, status, mode, recipient, sender, sender_id, campaign_id, encoding,
                          segments, guarantee, request_id, accepted_at)
    SELECT p_organization, id, 'accepted', CASE WHEN p_billed THEN 'live' ELSE 'test' END, recipient, p_sender,
           p_sender_id, p_campaign, encoding, segments, p_guarantee, p_request_id, p_at
      FROM unnest(p_id, p_recipient, p_encoding, p_segments) AS item (id, recipient, encoding, segments);

    INSERT INTO message_texts (organization_id, message_id, body)
    SELECT p_organization, id, coalesce(item.body, p_body) FROM unnest(p_id, p_text) AS item (id, body);

    -- Live messages have no supplier yet (line 0); test messages go straight to the one of test keys (line 1).
    INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
    SELECT 'sms', CASE WHEN p_billed THEN '00000000-0000-0000-0000-000000000000'::uuid
                       ELSE '00000000-0000-0000-0000-000000000001'::uuid END,
           p_lane, p_organization, coalesce(due, p_at), id
      FROM unnest(p_id, p_due) AS item (id, due);

    IF NOT p_billed THEN
        SELECT total - used INTO v_left FROM quotas WHERE organization_id = p_organization;
        RETURN coalesce(v_left, 0);
    END IF;

    UPDATE quotas SET used = used + v_count
     WHERE organization_id = p_organization AND total - used >= v_count
    RETURNING total - used INTO v_left;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the quota does not cover this' USING ERRCODE = 'HG001';
    END IF;
    INSERT INTO usage_ledger (organization_id, id, type, channel, quantity, balance_after, segments, message_id,
                              campaign_id, created_at)
    SELECT p_organization, id, 'usage', 'sms', -1, v_left + v_count - n, segments, id, p_campaign, p_at
      FROM unnest(p_id, p_segments) WITH ORDINALITY AS item (id, segments, n);
    RETURN v_left;
EXCEPTION WHEN SQLSTATE 'HG001' THEN
    RETURN NULL;
END $$;
