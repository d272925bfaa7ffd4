-- whatsapp_accept: accept a batch of WhatsApp messages in one transaction and one round trip.
--
-- First the wallets of the batch's organizations are locked, in a fixed order, so that two processes cannot deadlock.
-- From then on no other transaction accepts for these organizations, and the later statements' snapshots see everything
-- committed before: that is what makes idempotency keys and wallets exact across processes. If another transaction
-- holds a lock for over 2 s (as long as a duplicate waits for the first), the whole call fails.
--
-- Requests are also counted in their keys' rate windows here (p_rate_*, p_slot, p_place, p_limit), after the wallets:
-- a key's other requests are counted in the same row, and must not wait for a wallet. An item over its limit is
-- 'limited', whatever else applies to it.
--
-- An item already found not to be acceptable (p_eligible is false) is included nevertheless: if its idempotency key
-- already has an outcome, that outcome is the answer. A batch contains a key at most once. An outcome is valid for
-- p_kept, by the database's clock, whether or not a worker is running to delete it.
--
-- For a batch that is stored as a whole, only the state of the rate windows is returned; verdict and related columns
-- are NULL. For a replay, the values that its answer is rebuilt from are returned: message and reference.
--
-- p_person: who sent each item on the dashboard; the whole array is NULL if none was sent there.
--
-- Items are read by their position, p_id[n]: PL/pgSQL keeps its arrays unpacked, so this costs less than the row that
-- unnest() builds for each element (decision 0114).
--
-- p_price is the list price in millionths; a conversation that is still free when the message is due costs nothing.
-- p_margin: how long before its end, in seconds, a service window counts as closed. p_conversation: ids for new
-- conversations.
CREATE OR REPLACE FUNCTION whatsapp_accept(
    p_at timestamptz, p_kept interval, p_margin float8,
    p_organization uuid[], p_id uuid[], p_eligible boolean[], p_live boolean[], p_key uuid[], p_request bytea[],
    p_recipient text[], p_number uuid[], p_conversation uuid[], p_type text[], p_template uuid[], p_name text[],
    p_language text[], p_category text[], p_reference text[], p_campaign uuid[], p_request_id text[],
    p_deadline timestamptz[], p_due timestamptz[], p_lane smallint[], p_content text[], p_currency text[],
    p_price bigint[], p_country text[],
    p_bucket text, p_rate_organization uuid[], p_rate_key uuid[], p_rate_units int[],
    p_slot int[], p_place int[], p_limit int[], p_key_id uuid[], p_person uuid[]
) RETURNS TABLE (
    used int[], window_start timestamptz[], at timestamptz,
    verdict text[], price bigint[], available bigint[], since timestamptz[], expires timestamptz[],
    message uuid[], reference text[]
) LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    v_oldest timestamptz := now() - p_kept;
    -- UTC days on which keys that are still valid were created. The transaction that held the lock before may have
    -- begun later, after midnight; or the clock has been set back, by hours if it took local time for UTC.
    v_first date := (v_oldest AT TIME ZONE 'UTC')::date;
    v_last date := ((now() + interval '6 hours') AT TIME ZONE 'UTC')::date;
    v_today date := (now() AT TIME ZONE 'UTC')::date;
    v_organization uuid[] := CASE WHEN p_organization[1] = ALL (p_organization) THEN p_organization[1:1]
                                  ELSE ARRAY(SELECT DISTINCT unnest(p_organization) ORDER BY 1) END;
    v_locked int;
    v_taken int[];
    v_start timestamptz[];
    v_verdict text[];
    v_stored boolean[];
    v_price bigint[];
    v_available bigint[];
    v_since timestamptz[];
    v_expires timestamptz[];
    v_message uuid[];
    v_reference text[];
    v_used int[];
    v_thread uuid[];
    v_short boolean;
    -- It is known without a ranking that every item is stored, and what all of them cost.
    v_whole boolean;
    v_sum bigint;
    -- The items that need a new conversation, by position, and these conversations.
    v_new int[];
    v_opened uuid[];
    -- The organizations that have opt-outs; for the others, none is looked up by the recipient.
    v_opted_out uuid[];
    v_item record;
    v_left bigint;
    v_whose text := '';
BEGIN
    -- 1. Lock the organizations. One without a wallet gets an empty one, because a missing row cannot be locked.
    PERFORM 1 FROM wallets WHERE organization_id = ANY (v_organization) ORDER BY organization_id FOR UPDATE;
    GET DIAGNOSTICS v_locked = ROW_COUNT;
    IF v_locked < cardinality(v_organization) THEN
        INSERT INTO wallets (organization_id, currency, updated_at)
        SELECT DISTINCT ON (organization) organization, currency, p_at
          FROM unnest(p_organization, p_currency) AS item (organization, currency)
         WHERE currency IS NOT NULL ORDER BY organization
            ON CONFLICT DO NOTHING;
        PERFORM 1 FROM wallets WHERE organization_id = ANY (v_organization) ORDER BY organization_id FOR UPDATE;
    END IF;

    -- 2. Rate. A key's window of the current minute is updated directly, others in `count_requests`.
    IF cardinality(p_rate_key) = 1 THEN
        UPDATE rate_windows known SET taken = known.taken + p_rate_units[1]
         WHERE known.organization_id = p_rate_organization[1] AND known.key_id = p_rate_key[1]
           AND known.bucket = p_bucket AND known.window_start = date_trunc('minute', now())
        RETURNING ARRAY[known.taken], ARRAY[known.window_start] INTO v_taken, v_start;
    END IF;
    IF v_taken IS NULL THEN
        SELECT array_agg(counted.taken ORDER BY counted.organization_id, counted.key_id),
               array_agg(counted.window_start ORDER BY counted.organization_id, counted.key_id)
          INTO v_taken, v_start
          FROM count_requests(p_rate_organization, p_rate_key,
                              array_fill(p_bucket, ARRAY[cardinality(p_rate_units)]), p_rate_units) AS counted;
    END IF;

    -- 3. Decide. Usually the batch is one organization's, live, and stored as a whole: then look-ups suffice, without a
    -- ranking of the items. (An expired key counts as known there, and is recognized by the ranking.)
    v_opted_out := ARRAY(SELECT organization FROM unnest(v_organization) AS item (organization)
                          WHERE EXISTS (SELECT FROM opt_outs WHERE organization_id = item.organization));
    v_whole := cardinality(v_organization) = 1 AND true = ALL (p_eligible) AND true = ALL (p_live);
    IF v_whole AND array_remove(p_key, NULL) <> '{}' THEN
        v_whole := NOT EXISTS (
            SELECT FROM generate_series(1, cardinality(p_id)) AS n
             CROSS JOIN LATERAL (
                   SELECT FROM send_keys
                    WHERE organization_id = p_organization[n] AND key_hash = p_key[n]
                      AND made_on BETWEEN v_first AND v_last LIMIT 1) known);
    END IF;
    IF v_whole AND v_opted_out <> '{}' THEN
        v_whole := NOT EXISTS (
            SELECT FROM generate_series(1, cardinality(p_id)) AS n
             CROSS JOIN LATERAL (SELECT FROM opted_out_since(p_organization[n], p_recipient[n]) LIMIT 1) silence);
    END IF;
    IF v_whole THEN
        -- Sorted once, rather than for each array.
        SELECT array_agg(item.thread), array_agg(item.cost), array_agg(item.used), sum(item.cost),
               bool_and(item.is_open AND (item.cost = 0 OR item.has_wallet) AND coalesce(item.used <= item.most, true))
               AND sum(item.cost) <= greatest(min(item.available), 0)
          INTO v_thread, v_price, v_used, v_sum, v_whole
          FROM (SELECT thread.id AS thread, p_limit[n] AS most,
                       v_taken[p_slot[n]] - p_rate_units[p_slot[n]] + p_place[n] AS used,
                       CASE WHEN thread.free_until > greatest(p_due[n], now()) THEN 0 ELSE p_price[n] END AS cost,
                       wallets.available, p_currency[n] IS NOT DISTINCT FROM wallets.currency AS has_wallet,
                       p_type[n] <> 'text'
                           OR coalesce(thread.expires_at >= now() + make_interval(secs => p_margin), false) AS is_open
                  FROM wallets CROSS JOIN generate_series(1, cardinality(p_id)) AS n
                  LEFT JOIN LATERAL (
                       SELECT c.id, c.expires_at, c.free_until
                         FROM whatsapp_conversation_of(p_organization[n], p_number[n], p_recipient[n]) found
                        CROSS JOIN LATERAL (
                              SELECT id, whatsapp_conversations.expires_at, free_until FROM whatsapp_conversations
                               WHERE organization_id = p_organization[n] AND id = found.conversation_id LIMIT 1) c
                       ) thread ON true
                 WHERE wallets.organization_id = v_organization[1] ORDER BY n) item;
    END IF;

    IF v_whole THEN
        v_stored := array_fill(true, ARRAY[cardinality(p_id)]);
    ELSE
        -- As if every wallet covered its items; v_short: some wallet does not.
        SELECT array_agg(decided.verdict ORDER BY n), array_agg(decided.cost ORDER BY n),
               array_agg(decided.available ORDER BY n), array_agg(silent_since ORDER BY n),
               array_agg(expires_at ORDER BY n), array_agg(known_message ORDER BY n),
               array_agg(decided.used ORDER BY n), array_agg(thread ORDER BY n), bool_or(spent > decided.available)
          INTO v_verdict, v_price, v_available, v_since, v_expires, v_message, v_used, v_thread, v_short
          FROM (
            SELECT *, CASE WHEN judged.verdict = 'stored' AND cost > 0
                           THEN sum(cost) FILTER (WHERE judged.verdict = 'stored')
                                    OVER (PARTITION BY organization, currency) END AS spent
              FROM (
                SELECT *,
                       CASE WHEN limited THEN 'limited'
                            WHEN known_request = request THEN 'replayed'
                            WHEN known_request IS NOT NULL THEN 'conflict'
                            WHEN NOT eligible THEN 'refused'
                            WHEN silent_since IS NOT NULL THEN 'opted_out'
                            WHEN type = 'text' AND live
                                 AND NOT coalesce(expires_at >= now() + make_interval(secs => p_margin), false)
                            THEN 'closed'
                            ELSE 'stored' END AS verdict
                  FROM (
                    SELECT item.n, item.organization, item.eligible, item.live, item.request, item.type, item.currency,
                           CASE WHEN NOT item.live OR thread.free_until > greatest(item.due, now()) THEN 0
                                ELSE item.price END AS cost,
                           known.request_hash AS known_request,
                           known.message_id AS known_message,
                           coalesce(wallet.available, 0) AS available, silence.since AS silent_since,
                           thread.id AS thread, thread.expires_at,
                           v_taken[item.slot] - p_rate_units[item.slot] + item.place AS used,
                           coalesce(v_taken[item.slot] - p_rate_units[item.slot] + item.place > item.most, false)
                               AS limited
                      FROM (SELECT n, p_organization[n] AS organization, p_eligible[n] AS eligible, p_live[n] AS live,
                                   p_key[n] AS key, p_request[n] AS request, p_recipient[n] AS recipient,
                                   p_number[n] AS number, p_type[n] AS type, p_currency[n] AS currency,
                                   p_price[n] AS price, p_due[n] AS due, p_slot[n] AS slot, p_place[n] AS place,
                                   p_limit[n] AS most
                              FROM generate_series(1, cardinality(p_id)) AS n) item
                      -- LIMIT keeps the planner from turning these look-ups into other joins, even in a plan made while
                      -- a table was empty.
                      LEFT JOIN LATERAL (
                           SELECT wallets.available FROM wallets
                            WHERE organization_id = item.organization AND wallets.currency = item.currency LIMIT 1
                           ) wallet ON true
                      LEFT JOIN LATERAL (
                           SELECT request_hash, message_id FROM send_keys
                            WHERE organization_id = item.organization AND key_hash = item.key
                              AND made_on BETWEEN v_first AND v_last AND created_at > v_oldest LIMIT 1) known ON true
                      LEFT JOIN LATERAL (
                           SELECT silent.since FROM opted_out_since(item.organization, item.recipient) silent
                            WHERE item.organization = ANY (v_opted_out) LIMIT 1
                           ) silence ON true
                      LEFT JOIN LATERAL (
                           SELECT found.conversation_id
                             FROM whatsapp_conversation_of(
                                      item.organization, item.number,
                                      CASE WHEN item.live THEN '' ELSE 'test:' END || item.recipient) found
                           ) known_as ON true
                      LEFT JOIN LATERAL (
                           SELECT id, whatsapp_conversations.expires_at, free_until FROM whatsapp_conversations
                            WHERE organization_id = item.organization AND id = known_as.conversation_id LIMIT 1
                           ) thread ON true
                  ) looked_up
              ) judged
          ) decided;

        -- In the order of the items; one that costs more than is left does not stop cheaper ones after it.
        IF v_short THEN
            FOR v_item IN
                SELECT n, organization || currency AS whose FROM unnest(p_organization, p_currency) WITH ORDINALITY
                       AS item (organization, currency, n)
                 WHERE v_verdict[n] = 'stored' AND v_price[n] > 0 ORDER BY organization, currency, n
            LOOP
                IF v_item.whose <> v_whose THEN
                    v_whose := v_item.whose;
                    v_left := v_available[v_item.n];
                END IF;
                v_available[v_item.n] := v_left;
                IF v_price[v_item.n] > v_left THEN
                    v_verdict[v_item.n] := 'funds';
                ELSE
                    v_left := v_left - v_price[v_item.n];
                END IF;
            END LOOP;
        END IF;
        v_stored := ARRAY(SELECT one = 'stored' FROM unnest(v_verdict) WITH ORDINALITY AS item (one, n) ORDER BY n);
    END IF;

    -- 4. Store.
    IF true = ANY (v_stored) THEN
        IF v_whole AND array_remove(v_thread, NULL) = '{}' THEN
            v_thread := whatsapp_open_conversations(p_at, p_organization, p_number, p_recipient, p_conversation);
        ELSIF array_position(v_thread, NULL) IS NOT NULL THEN
            v_new := ARRAY(SELECT n FROM generate_series(1, cardinality(p_id)) AS n
                            WHERE v_stored[n] AND v_thread[n] IS NULL);
        END IF;
        IF v_new <> '{}' THEN
            v_opened := whatsapp_open_conversations(
                p_at,
                ARRAY(SELECT p_organization[n] FROM unnest(v_new) AS n),
                ARRAY(SELECT p_number[n] FROM unnest(v_new) AS n),
                ARRAY(SELECT CASE WHEN p_live[n] THEN '' ELSE 'test:' END || p_recipient[n] FROM unnest(v_new) AS n),
                ARRAY(SELECT p_conversation[n] FROM unnest(v_new) AS n));
            FOR v_place IN 1 .. cardinality(v_new) LOOP
                v_thread[v_new[v_place]] := v_opened[v_place];
            END LOOP;
        END IF;

        INSERT INTO whatsapp_messages (organization_id, id, direction, type, mode, status, number_id, conversation_id,
                                       recipient, template_id, template_name, template_language, billing_category,
                                       content, client_reference, campaign_id, key_id, person_id, request_id,
                                       accepted_at, deadline_at, charge, reserved, country)
        SELECT p_organization[n], p_id[n], 'outbound', p_type[n], CASE WHEN p_live[n] THEN 'live' ELSE 'test' END,
               'accepted', p_number[n], v_thread[n], p_recipient[n], p_template[n], p_name[n], p_language[n],
               p_category[n], p_content[n], p_reference[n], p_campaign[n], p_key_id[n], p_person[n], p_request_id[n],
               p_at, p_deadline[n], CASE WHEN p_live[n] THEN 'reserved' ELSE 'none' END, v_price[n], p_country[n]
          FROM generate_series(1, cardinality(p_id)) AS n WHERE v_stored[n];

        INSERT INTO traffic_deltas (organization_id, batch, n, hour, channel, mode, country, sender, supplier_id, status,
                                    count, segments, campaign_id, key_id)
        SELECT organization, (array_agg(id))[1], 0, date_trunc('hour', p_at, 'UTC'), 'whatsapp',
               CASE WHEN live THEN 'live' ELSE 'test' END, country, number::text,
               '00000000-0000-0000-0000-000000000000', 'accepted', count(*), 0, campaign, p_rate_key[slot]
          FROM (SELECT p_organization[n] AS organization, p_id[n] AS id, p_live[n] AS live, p_country[n] AS country,
                       p_number[n] AS number, p_campaign[n] AS campaign, p_slot[n] AS slot
                  FROM generate_series(1, cardinality(p_id)) AS n WHERE v_stored[n]) item
         GROUP BY organization, live, country, number, campaign, p_rate_key[slot];

        -- Every live message has a reservation, even a free one: all are charged in the same way.
        INSERT INTO wallet_movements (organization_id, id, movement, message_id, available, reserved, consumed,
                                      created_at)
        SELECT p_organization[n], p_id[n], 'reserve', p_id[n], -v_price[n], v_price[n], 0, p_at
          FROM generate_series(1, cardinality(p_id)) AS n WHERE v_stored[n] AND p_live[n];

        -- Live messages wait in the line of their number; test messages go straight to the single line of test keys.
        INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
        SELECT 'whatsapp',
               CASE WHEN p_live[n] THEN p_number[n] ELSE '00000000-0000-0000-0000-000000000001'::uuid END, p_lane[n],
               p_organization[n], greatest(p_due[n], p_at), p_id[n]
          FROM generate_series(1, cardinality(p_id)) AS n WHERE v_stored[n];

        -- If keys are kept for less than a day, an expired key may be from today. Otherwise all of today's are valid,
        -- and none can conflict with a new one: ON CONFLICT would look for it again (decision 0133).
        IF p_kept >= interval '1 day' THEN
            INSERT INTO send_keys (organization_id, key_hash, made_on, request_hash, message_id, created_at)
            SELECT p_organization[n], p_key[n], v_today, p_request[n], p_id[n], now()
              FROM generate_series(1, cardinality(p_id)) AS n WHERE v_stored[n] AND p_key[n] IS NOT NULL;
        ELSE
            INSERT INTO send_keys AS past (organization_id, key_hash, made_on, request_hash, message_id, created_at)
            SELECT p_organization[n], p_key[n], v_today, p_request[n], p_id[n], now()
              FROM generate_series(1, cardinality(p_id)) AS n WHERE v_stored[n] AND p_key[n] IS NOT NULL
                ON CONFLICT (organization_id, key_hash, made_on) DO UPDATE
               SET request_hash = excluded.request_hash, message_id = excluded.message_id, created_at = excluded.created_at;
        END IF;

        IF v_whole THEN
            UPDATE wallets SET available = wallets.available - v_sum, reserved = wallets.reserved + v_sum,
                               updated_at = p_at
             WHERE organization_id = v_organization[1] AND v_sum > 0;
        ELSE
            UPDATE wallets SET available = wallets.available - debit.sum, reserved = wallets.reserved + debit.sum,
                               updated_at = p_at
              FROM (SELECT p_organization[n] AS organization, sum(v_price[n]) AS sum
                      FROM generate_series(1, cardinality(p_id)) AS n
                     WHERE v_stored[n] AND v_price[n] > 0 GROUP BY p_organization[n]) debit
             WHERE wallets.organization_id = debit.organization;
        END IF;
    END IF;

    IF true = ALL (v_stored) THEN
        RETURN QUERY SELECT v_used, v_start, clock_timestamp(), NULL::text[], NULL::bigint[], NULL::bigint[],
                            NULL::timestamptz[], NULL::timestamptz[], NULL::uuid[], NULL::text[];
        RETURN;
    END IF;

    -- 5. The answers to replays. Messages are kept far longer than keys.
    IF 'replayed' = ANY (v_verdict) THEN
        SELECT array_agg(earlier.client_reference ORDER BY n) INTO v_reference
          FROM unnest(v_verdict, p_organization, v_message) WITH ORDINALITY AS item(verdict, organization, message, n)
          LEFT JOIN LATERAL (
               SELECT client_reference FROM whatsapp_messages
                WHERE item.verdict = 'replayed' AND organization_id = item.organization AND id = item.message
                LIMIT 1) earlier ON true;
    END IF;
    RETURN QUERY SELECT v_used, v_start, clock_timestamp(), v_verdict, v_price, v_available, v_since, v_expires,
                        v_message, v_reference;
END $$;
