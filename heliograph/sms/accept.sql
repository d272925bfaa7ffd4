-- sms_accept_2: accept a batch of messages in one transaction and one round trip.
--
-- First the balance rows of the batch's organizations are locked, in one order, so that two processes never wait
-- for each other in a circle. From then on nobody else accepts for these organizations, and the second statement's
-- snapshot sees all that was committed before: that is what makes idempotency keys and quota exact across processes.
--
-- A lock that somebody holds for over 2 s (that long a twin waits for the first) fails the whole call.
--
-- A request's unit of its key's rate window is taken here as well (p_rate_*, p_slot, p_place, p_limit), which saves a
-- round trip for each batch: first the windows' rows in one order, then the balances'. An item over its limit is
-- 'limited', whatever else is true of it.
--
-- An item that must not be accepted for a reason found before (p_eligible is false) comes along all the same: if its
-- idempotency key already has an outcome, that outcome is the answer. A batch holds a key at most once. An outcome is
-- kept for p_kept, by the database's clock, whether or not a worker is there to delete it.
CREATE OR REPLACE FUNCTION sms_accept_2(
    p_at timestamptz, p_kept interval,
    p_organization uuid[], p_id uuid[], p_eligible boolean[], p_billed boolean[], p_key uuid[], p_request bytea[],
    p_recipient text[], p_sender text[], p_sender_id uuid[], p_reference text[], p_campaign uuid[], p_encoding text[],
    p_segments smallint[], p_guarantee text[], p_request_id text[], p_expires timestamptz[], p_due timestamptz[],
    p_lane smallint[], p_text text[], p_head text[], p_tail text[],
    p_bucket text, p_rate_organization uuid[], p_rate_key uuid[], p_rate_units int[],
    p_slot int[], p_place int[], p_limit int[]
) RETURNS TABLE (
    verdict text, remaining bigint, since timestamptz, status smallint, body text,
    used int, window_start timestamptz, at timestamptz
) LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    v_oldest timestamptz := now() - p_kept;
    v_is_old boolean;
    v_taken int[];
    v_start timestamptz[];
    v_verdict text[];
    v_stored boolean[];
    v_left bigint[];
    v_since timestamptz[];
    v_status smallint[];
    v_body text[];
    v_used int[];
BEGIN
    -- 1. Rate.
    SELECT array_agg(counted.taken ORDER BY counted.organization_id, counted.key_id),
           array_agg(counted.window_start ORDER BY counted.organization_id, counted.key_id)
      INTO v_taken, v_start
      FROM rate_windows_1(p_rate_organization, p_rate_key,
                          array_fill(p_bucket, ARRAY[cardinality(p_rate_units)]), p_rate_units) AS counted;

    -- 2. The organizations' turn.
    PERFORM 1 FROM quotas
      WHERE organization_id = ANY (ARRAY(SELECT DISTINCT unnest(p_organization)))
      ORDER BY organization_id FOR UPDATE;

    -- 3. Decide. Those that cost a unit of quota count up within their organization, in the order they came.
    SELECT array_agg(decided.verdict ORDER BY n), array_agg(decided.verdict = 'stored' ORDER BY n),
           array_agg(left_over ORDER BY n), array_agg(silent_since ORDER BY n), array_agg(known_status ORDER BY n),
           array_agg(known_body ORDER BY n), array_agg(decided.used ORDER BY n), bool_or(is_old)
      INTO v_verdict, v_stored, v_left, v_since, v_status, v_body, v_used, v_is_old
      FROM (
        SELECT *,
               CASE WHEN limited THEN 'limited'
                    WHEN known_request = request THEN 'replayed'
                    WHEN known_request IS NOT NULL THEN 'conflict'
                    WHEN NOT eligible THEN 'refused'
                    WHEN silent_since IS NOT NULL THEN 'opted_out'
                    WHEN billed AND spent > available THEN 'quota'
                    ELSE 'stored' END AS verdict,
               greatest(available - spent, 0)::bigint AS left_over
          FROM (
            SELECT *, coalesce(sum(1) FILTER (WHERE billed AND eligible AND NOT limited AND known_request IS NULL
                                                AND silent_since IS NULL)
                                 OVER (PARTITION BY organization ORDER BY n ROWS UNBOUNDED PRECEDING), 0) AS spent
              FROM (
                SELECT item.n, item.organization, item.eligible, item.billed, item.request,
                       known.request_hash AS known_request, known.status AS known_status, known.body AS known_body,
                       known.is_old,
                       coalesce(quota.total - quota.used, 0) AS available, silence.since AS silent_since,
                       v_taken[item.slot] - p_rate_units[item.slot] + item.place AS used,
                       coalesce(v_taken[item.slot] - p_rate_units[item.slot] + item.place > item.most, false) AS limited
                  FROM unnest(p_organization, p_id, p_eligible, p_billed, p_key, p_request, p_recipient, p_slot,
                              p_place, p_limit) WITH ORDINALITY
                       AS item(organization, id, eligible, billed, key, request, recipient, slot, place, most, n)
                  -- LIMIT keeps each look-up a look-up, whatever a plan that was made while a table was empty thinks.
                  LEFT JOIN LATERAL (
                       SELECT quotas.total, quotas.used FROM quotas
                        WHERE organization_id = item.organization LIMIT 1) quota ON true
                  LEFT JOIN LATERAL (
                       SELECT CASE WHEN created_at > v_oldest THEN request_hash END AS request_hash,
                              created_at <= v_oldest AS is_old, idempotency.status, idempotency.body FROM idempotency
                        WHERE organization_id = item.organization AND key_hash = item.key LIMIT 1) known ON true
                  -- The confirmation of an opt-out is the one message that still goes to such a number. Counted,
                  -- because EXISTS may be planned as a hash of the whole table.
                  LEFT JOIN LATERAL (
                       SELECT silent.since FROM silence_1(item.organization, item.recipient) silent
                        WHERE (SELECT count(*) FROM automatic_replies reply
                                WHERE reply.organization_id = item.organization AND reply.recipient = item.recipient
                                  AND reply.message_id = item.id) = 0
                        LIMIT 1) silence ON true
              ) judged
          ) ranked
      ) decided;

    -- 4. Store.
    IF true = ANY (v_stored) THEN
        INSERT INTO messages (organization_id, id, status, mode, recipient, sender, sender_id, client_reference,
                              campaign_id, encoding, segments, guarantee, request_id, accepted_at, expires_at, send_at)
        SELECT organization, id, 'accepted', CASE WHEN billed THEN 'live' ELSE 'test' END, recipient, sender, sender_id,
               reference, campaign, encoding, segments, guarantee, request_id, p_at, expires, due
          FROM unnest(v_stored, p_organization, p_id, p_billed, p_recipient, p_sender, p_sender_id, p_reference,
                      p_campaign, p_encoding, p_segments, p_guarantee, p_request_id, p_expires, p_due)
               AS item(stored, organization, id, billed, recipient, sender, sender_id, reference, campaign, encoding,
                       segments, guarantee, request_id, expires, due)
         WHERE stored;

        INSERT INTO message_texts (organization_id, message_id, body)
        SELECT organization, id, item.body
          FROM unnest(v_stored, p_organization, p_id, p_text) AS item(stored, organization, id, body) WHERE stored;

        INSERT INTO usage_ledger (organization_id, id, type, channel, quantity, balance_after, segments, message_id,
                                  campaign_id, created_at)
        SELECT organization, id, 'usage', 'sms', -1, left_over, segments, id, campaign, p_at
          FROM unnest(v_stored, p_organization, p_id, p_billed, v_left, p_segments, p_campaign)
               AS item(stored, organization, id, billed, left_over, segments, campaign)
         WHERE stored AND billed;

        -- Live messages have no supplier yet (line 0); test messages go straight to the one of test keys (line 1).
        INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
        SELECT 'sms', CASE WHEN billed THEN '00000000-0000-0000-0000-000000000000'::uuid
                           ELSE '00000000-0000-0000-0000-000000000001'::uuid END,
               lane, organization, coalesce(due, p_at), id
          FROM unnest(v_stored, p_organization, p_id, p_billed, p_lane, p_due)
               AS item(stored, organization, id, billed, lane, due)
         WHERE stored;

        -- Keys past their time that no worker has deleted yet: they are as good as gone.
        IF v_is_old THEN
            DELETE FROM idempotency WHERE ctid = ANY (ARRAY(
                SELECT old.place FROM unnest(p_organization, p_key) AS item(organization, key)
                 CROSS JOIN LATERAL (
                       SELECT ctid AS place FROM idempotency
                        WHERE organization_id = item.organization AND key_hash = item.key AND created_at <= v_oldest
                        LIMIT 1) old));
        END IF;
        INSERT INTO idempotency (organization_id, key_hash, request_hash, status, body, created_at)
        SELECT organization, key, request, 202, head || left_over || tail, now()
          FROM unnest(v_stored, p_organization, p_key, p_request, v_left, p_head, p_tail)
               AS item(stored, organization, key, request, left_over, head, tail)
         WHERE stored AND key IS NOT NULL;

        UPDATE quotas SET used = quotas.used + debit.units
          FROM (SELECT organization, count(*) AS units
                  FROM unnest(v_stored, p_organization, p_billed) AS item(stored, organization, billed)
                 WHERE stored AND billed GROUP BY organization) debit
         WHERE quotas.organization_id = debit.organization;
    END IF;

    RETURN QUERY
    SELECT item.verdict, left_over, item.since, item.status,
           CASE item.verdict WHEN 'replayed' THEN known_body WHEN 'stored' THEN head || left_over || tail END,
           item.used, v_start[slot], clock_timestamp()
      FROM unnest(v_verdict, v_left, v_since, v_status, v_body, v_used, p_slot, p_head, p_tail)
           AS item(verdict, left_over, since, status, known_body, used, slot, head, tail);
END $$;
