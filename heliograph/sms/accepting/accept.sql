-- sms_accept: accept a batch of messages in one transaction and one round trip.
--
-- First the balance rows of the batch's organizations are locked, in a fixed order, so that two processes cannot
-- deadlock. From then on no other process accepts for these organizations, and the second statement's snapshot sees
-- everything committed before: that is what makes idempotency keys and quota exact across processes.
--
-- If another transaction holds a lock for over 2 s (as long as a duplicate waits for the first), the whole call fails.
--
-- A request's unit of its key's rate window is also charged here (p_rate_*, p_slot, p_place, p_limit), which saves a
-- round trip for each batch: first the windows' rows in a fixed order, then the balances'. An item over its limit is
-- 'limited', whatever else applies to it.
--
-- An item already found not to be acceptable (p_eligible is false) is included nevertheless: if its idempotency key
-- already has an outcome, that outcome is the answer. A batch contains a key at most once. An outcome is valid for
-- p_kept, by the database's clock, whether or not a worker is running to delete it.
--
-- p_life: how long each item is worth delivering once it is due; NULL: no limit of its own.
--
-- p_price: what each item's organization pays, in millionths, with its currency and when it is due; the whole array is
-- NULL if nothing has a price.
--
-- p_person: who sent each item on the dashboard; the whole array is NULL if all were sent with API keys.
--
-- p_defaulted: true for each item that named no sender, else NULL.
--
-- Items are read by their position, p_id[n]: PL/pgSQL keeps its arrays unpacked, so this costs less than the row that
-- unnest() builds for each element (decision 0114).
--
-- For a batch that is stored as a whole, only the balances (and the state of the rate windows) are returned; verdict
-- and related columns are NULL. For a replay, the values that its answer is rebuilt from are returned: message,
-- reference and remaining quota.
CREATE OR REPLACE FUNCTION sms_accept(
    p_at timestamptz, p_kept interval,
    p_organization uuid[], p_id uuid[], p_eligible boolean[], p_billed boolean[], p_key uuid[], p_request bytea[],
    p_recipient text[], p_country text[], p_sender text[], p_sender_id uuid[], p_reference text[], p_campaign uuid[],
    p_encoding text[], p_segments smallint[], p_guarantee text[], p_request_id text[], p_life interval[],
    p_due timestamptz[], p_lane smallint[], p_text text[],
    p_bucket text, p_rate_organization uuid[], p_rate_key uuid[], p_rate_units int[],
    p_slot int[], p_place int[], p_limit int[], p_key_id uuid[], p_person uuid[], p_class text[],
    p_price bigint[], p_price_currency text[], p_price_due text[], p_defaulted boolean[]
) RETURNS TABLE (
    remaining bigint[], used int[], window_start timestamptz[], at timestamptz,
    verdict text[], since timestamptz[], message uuid[], reference text[]
) LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    v_oldest timestamptz := now() - p_kept;
    -- UTC days on which keys that are still valid were created. The transaction that held the lock before may have
    -- begun later, after midnight; or the clock has been set back, by hours if it took local time for UTC.
    v_first date := (v_oldest AT TIME ZONE 'UTC')::date;
    v_last date := ((now() + interval '6 hours') AT TIME ZONE 'UTC')::date;
    v_today date := (now() AT TIME ZONE 'UTC')::date;
    v_taken int[];
    v_start timestamptz[];
    v_verdict text[];
    v_stored boolean[];
    v_left bigint[];
    v_since timestamptz[];
    v_message uuid[];
    v_reference text[];
    v_used int[];
    -- The daily limit that an item would exceed; NULL: nobody in the batch has one.
    v_over text[];
    -- It is known without a ranking that every item is stored.
    v_whole boolean;
BEGIN
    -- 1. Rate.
    SELECT array_agg(counted.taken ORDER BY counted.organization_id, counted.key_id),
           array_agg(counted.window_start ORDER BY counted.organization_id, counted.key_id)
      INTO v_taken, v_start
      FROM count_requests(p_rate_organization, p_rate_key,
                          array_fill(p_bucket, ARRAY[cardinality(p_rate_units)]), p_rate_units) AS counted;

    -- 2. Lock the organizations' balances.
    PERFORM 1 FROM quotas
      WHERE organization_id = ANY (ARRAY(SELECT DISTINCT unnest(p_organization)))
      ORDER BY organization_id FOR UPDATE;

    -- Daily limits, which few have; the transaction that held the lock before may have begun on the next day. A day
    -- further ahead is from before the clock was set back. Segments are counted in the order of the items, as if all
    -- were stored.
    IF EXISTS (SELECT FROM spend_limits WHERE organization_id = ANY (p_organization)) THEN
        SELECT array_agg(CASE WHEN by_all > whole.available THEN 'spend_organization'
                              WHEN by_key > own.available THEN 'spend_key' END ORDER BY counted.n)
          INTO v_over
          FROM (
            SELECT item.n, item.organization, item.key_id,
                   sum(item.cost) OVER (PARTITION BY item.organization ORDER BY item.n ROWS UNBOUNDED PRECEDING)
                       AS by_all,
                   sum(item.cost) OVER (PARTITION BY item.organization, item.key_id ORDER BY item.n
                                        ROWS UNBOUNDED PRECEDING) AS by_key
              FROM (SELECT n, organization, key_id, CASE WHEN billed AND eligible THEN segments ELSE 0 END AS cost
                      FROM unnest(p_organization, p_key_id, p_billed, p_eligible, p_segments) WITH ORDINALITY
                           AS given(organization, key_id, billed, eligible, segments, n)) item
          ) counted
          LEFT JOIN LATERAL (
               SELECT segments - CASE WHEN day - v_today IN (0, 1) THEN spend_limits.used ELSE 0 END AS available
                 FROM spend_limits WHERE organization_id = counted.organization
                  AND key_id = '00000000-0000-0000-0000-000000000000' LIMIT 1) whole ON true
          LEFT JOIN LATERAL (
               SELECT segments - CASE WHEN day - v_today IN (0, 1) THEN spend_limits.used ELSE 0 END AS available
                 FROM spend_limits WHERE organization_id = counted.organization AND key_id = counted.key_id
                LIMIT 1) own ON true;
    END IF;

    -- 3. Decide. Usually the batch is one organization's, and stored as a whole: then the look-ups suffice, without a
    -- ranking of the items. Otherwise there is no row here, and all variables are NULL. (An expired key counts as known
    -- here, and is recognized below.)
    IF v_over IS NULL AND p_organization[1] = ALL (p_organization) AND true = ALL (p_eligible) AND true = ALL (p_billed)
    THEN
        SELECT array_agg(true), array_agg(left_over ORDER BY n), array_agg(item.used ORDER BY n)
          INTO v_stored, v_left, v_used
          FROM (SELECT n, quotas.total - quotas.used - n AS left_over, p_limit[n] AS most,
                       v_taken[p_slot[n]] - p_rate_units[p_slot[n]] + p_place[n] AS used
                  FROM quotas CROSS JOIN generate_series(1, cardinality(p_id)) AS n
                 WHERE organization_id = p_organization[1]) item
        HAVING min(left_over) >= 0 AND bool_and(coalesce(item.used <= most, true))
           AND NOT EXISTS (
               SELECT FROM generate_series(1, cardinality(p_id)) AS n
                CROSS JOIN LATERAL (
                      SELECT FROM send_keys
                       WHERE organization_id = p_organization[n] AND key_hash = p_key[n]
                         AND made_on BETWEEN v_first AND v_last LIMIT 1) known)
           AND NOT EXISTS (
               SELECT FROM generate_series(1, cardinality(p_id)) AS n
                CROSS JOIN LATERAL (SELECT FROM opted_out_since(p_organization[n], p_recipient[n]) LIMIT 1) silence
                -- Many organizations have no opt-outs at all: for them, nothing is looked up by the recipient.
                WHERE EXISTS (SELECT FROM opt_outs WHERE organization_id = p_organization[1]));
    END IF;
    v_whole := v_stored IS NOT NULL;

    IF NOT v_whole THEN
        -- Items that use a unit of quota are counted within their organization, in order.
        SELECT array_agg(decided.verdict ORDER BY n), array_agg(decided.verdict = 'stored' ORDER BY n),
               array_agg(left_over ORDER BY n), array_agg(silent_since ORDER BY n),
               array_agg(known_message ORDER BY n), array_agg(decided.used ORDER BY n)
          INTO v_verdict, v_stored, v_left, v_since, v_message, v_used
          FROM (
            SELECT *,
                   CASE WHEN limited THEN 'limited'
                        WHEN known_request = request THEN 'replayed'
                        WHEN known_request IS NOT NULL THEN 'conflict'
                        WHEN NOT eligible THEN 'refused'
                        WHEN silent_since IS NOT NULL THEN 'opted_out'
                        WHEN billed AND passed IS NOT NULL THEN passed
                        WHEN billed AND spent > available THEN 'quota'
                        ELSE 'stored' END AS verdict,
                   greatest(available - spent, 0)::bigint AS left_over
              FROM (
                SELECT *, coalesce(sum(1) FILTER (WHERE billed AND eligible AND NOT limited AND known_request IS NULL
                                                    AND silent_since IS NULL AND passed IS NULL)
                                     OVER (PARTITION BY organization ORDER BY n ROWS UNBOUNDED PRECEDING), 0) AS spent
                  FROM (
                    SELECT item.n, item.organization, item.eligible, item.billed, item.request, item.passed,
                           known.request_hash AS known_request, 
                           known.message_id AS known_message,
                           coalesce(quota.total - quota.used, 0) AS available, silence.since AS silent_since,
                           v_taken[item.slot] - p_rate_units[item.slot] + item.place AS used,
                           coalesce(v_taken[item.slot] - p_rate_units[item.slot] + item.place > item.most, false)
                               AS limited
                      FROM (SELECT n, p_organization[n] AS organization, p_id[n] AS id, p_eligible[n] AS eligible,
                                   p_billed[n] AS billed, p_key[n] AS key, p_request[n] AS request,
                                   p_recipient[n] AS recipient, p_slot[n] AS slot, p_place[n] AS place,
                                   p_limit[n] AS most, v_over[n] AS passed
                              FROM generate_series(1, cardinality(p_id)) AS n) item
                      -- LIMIT keeps each look-up a look-up, even in a plan made while a table was empty.
                      LEFT JOIN LATERAL (
                           SELECT quotas.total, quotas.used FROM quotas
                            WHERE organization_id = item.organization LIMIT 1) quota ON true
                      LEFT JOIN LATERAL (
                           SELECT request_hash, message_id FROM send_keys
                            WHERE organization_id = item.organization AND key_hash = item.key
                              AND made_on BETWEEN v_first AND v_last AND created_at > v_oldest
                            LIMIT 1) known ON true
                      -- The confirmation of an opt-out is the only message that such a number still gets: looked up
                      -- only if there is an opt-out. Counted, because EXISTS may be planned as a hash of the whole
                      -- table.
                      LEFT JOIN LATERAL (
                           SELECT silent.since FROM opted_out_since(item.organization, item.recipient) silent
                            WHERE (SELECT count(*) FROM automatic_replies reply
                                    WHERE silent.since IS NOT NULL AND reply.organization_id = item.organization
                                      AND reply.recipient = item.recipient AND reply.message_id = item.id) = 0
                            LIMIT 1) silence ON true
                  ) judged
              ) ranked
          ) decided;
    END IF;

    -- 4. Store.
    IF true = ANY (v_stored) THEN
        INSERT INTO messages (organization_id, id, mode, status, recipient, sender, sender_id, encoding, segments,
                              sender_defaulted, class, guarantee, country, body, client_reference, campaign_id, key_id,
                              person_id, request_id, balance_after, price, price_currency, price_due, accepted_at,
                              send_at, expires_at)
        SELECT p_organization[n], p_id[n], CASE WHEN p_billed[n] THEN 'live' ELSE 'test' END, 'accepted',
               p_recipient[n], p_sender[n], p_sender_id[n], p_encoding[n], p_segments[n], p_defaulted[n], p_class[n],
               p_guarantee[n], p_country[n], p_text[n], p_reference[n], p_campaign[n], p_key_id[n], p_person[n],
               p_request_id[n], v_left[n], p_price[n], p_price_currency[n], p_price_due[n], p_at, p_due[n],
               greatest(p_due[n], p_at) + p_life[n]
          FROM generate_series(1, cardinality(p_id)) AS n WHERE v_stored[n];

        INSERT INTO traffic_deltas (organization_id, batch, n, hour, channel, mode, country, sender, supplier_id, status,
                                    count, segments, campaign_id, key_id)
        SELECT organization, (array_agg(id))[1], 0, date_trunc('hour', p_at, 'UTC'), 'sms',
               CASE WHEN billed THEN 'live' ELSE 'test' END, country, sender,
               '00000000-0000-0000-0000-000000000000', 'accepted', count(*), sum(segments), campaign, p_rate_key[slot]
          FROM (SELECT p_organization[n] AS organization, p_id[n] AS id, p_billed[n] AS billed,
                       p_country[n] AS country, p_sender[n] AS sender, p_segments[n] AS segments,
                       p_campaign[n] AS campaign, p_slot[n] AS slot
                  FROM generate_series(1, cardinality(p_id)) AS n WHERE v_stored[n]) item
         GROUP BY organization, billed, country, sender, campaign, p_rate_key[slot];

        -- Live messages have no supplier yet (line 0); test messages go straight to the supplier of test keys (line 1).
        INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
        SELECT 'sms', CASE WHEN p_billed[n] THEN '00000000-0000-0000-0000-000000000000'::uuid
                           ELSE '00000000-0000-0000-0000-000000000001'::uuid END,
               p_lane[n], p_organization[n], greatest(p_due[n], p_at), p_id[n]
          FROM generate_series(1, cardinality(p_id)) AS n WHERE v_stored[n];

        -- If keys are kept for less than a day, an expired key may be from today. Otherwise all of today's are valid,
        -- and none can conflict with a new one: ON CONFLICT would look for it again, which costs 2 µs per message.
        IF p_kept >= interval '1 day' THEN
            INSERT INTO send_keys (organization_id, key_hash, made_on, request_hash, message_id, created_at)
            SELECT p_organization[n], p_key[n], v_today, p_request[n], p_id[n], now()
              FROM generate_series(1, cardinality(p_id)) AS n WHERE v_stored[n] AND p_key[n] IS NOT NULL;
        ELSE
            INSERT INTO send_keys AS past (organization_id, key_hash, made_on, request_hash, message_id, created_at)
            SELECT organization, key, v_today, request, id, now()
              FROM unnest(v_stored, p_organization, p_key, p_request, p_id)
                   AS item(stored, organization, key, request, id)
             WHERE stored AND key IS NOT NULL
                ON CONFLICT (organization_id, key_hash, made_on) DO UPDATE
               SET request_hash = excluded.request_hash, message_id = excluded.message_id, created_at = excluded.created_at;
        END IF;

        IF v_whole THEN
            UPDATE quotas SET used = quotas.used + cardinality(p_id) WHERE organization_id = p_organization[1];
        ELSE
            UPDATE quotas SET used = quotas.used + debit.units
              FROM (SELECT p_organization[n] AS organization, count(*) AS units
                      FROM generate_series(1, cardinality(p_id)) AS n
                     WHERE v_stored[n] AND p_billed[n] GROUP BY p_organization[n]) debit
             WHERE quotas.organization_id = debit.organization;
        END IF;

        IF v_over IS NOT NULL THEN
            UPDATE spend_limits
               SET used = CASE WHEN day - v_today IN (0, 1) THEN spend_limits.used ELSE 0 END + debit.segments,
                   day = CASE WHEN day - v_today IN (0, 1) THEN day ELSE v_today END
              FROM (SELECT organization, which, sum(segments) AS segments
                      FROM unnest(v_stored, p_organization, p_key_id, p_billed, p_segments)
                           AS item(stored, organization, key_id, billed, segments)
                     CROSS JOIN LATERAL (VALUES ('00000000-0000-0000-0000-000000000000'::uuid), (key_id)) AS scope(which)
                     WHERE stored AND billed GROUP BY organization, which) debit
             WHERE spend_limits.organization_id = debit.organization AND spend_limits.key_id = debit.which;
        END IF;
    END IF;

    IF true = ALL (v_stored) THEN
        RETURN QUERY SELECT v_left, v_used, v_start, clock_timestamp(), NULL::text[], NULL::timestamptz[],
                            NULL::uuid[], NULL::text[];
        RETURN;
    END IF;

    -- 5. The answers to replays. A message outlives its key by far.
    IF 'replayed' = ANY (v_verdict) THEN
        SELECT array_agg(earlier.client_reference ORDER BY n), array_agg(coalesce(balance_after, left_over) ORDER BY n)
          INTO v_reference, v_left
          FROM unnest(v_verdict, p_organization, v_message, v_left) WITH ORDINALITY
               AS item(verdict, organization, message, left_over, n)
          LEFT JOIN LATERAL (
               SELECT client_reference, balance_after FROM messages
                WHERE item.verdict = 'replayed' AND organization_id = item.organization AND id = item.message
                LIMIT 1) earlier ON true;
    END IF;
    RETURN QUERY SELECT v_left, v_used, v_start, clock_timestamp(), v_verdict, v_since, v_message, v_reference;
END $$;
