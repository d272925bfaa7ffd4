-- whatsapp_accept_bulk: accept messages of one organization, number, template and campaign, all of them or none.
--
-- Writes the same rows as `whatsapp_accept`, with the same accounting, but without idempotency keys and rate windows;
-- the caller has checked each recipient. Single sends of the organization wait while the wallet is locked, so it is
-- locked last; but it is locked first if any user has no conversation yet, because conversations are created under the
-- lock.
--
-- p_life: time from when a message is due to its expiry. p_price: list prices in millionths; a conversation that is
-- still free when its message is due costs nothing. p_conversation: ids for new conversations. Returns the wallet's
-- available balance afterwards, or NULL if it does not cover all messages; then nothing is stored. Test messages cost
-- nothing and return the current balance.
CREATE OR REPLACE FUNCTION whatsapp_accept_bulk(
    p_at timestamptz, p_organization uuid, p_billed boolean, p_number uuid, p_campaign uuid, p_template uuid,
    p_name text, p_language text, p_category text, p_currency text, p_life interval, p_request_id text, p_lane smallint,
    p_id uuid[], p_recipient text[], p_conversation uuid[], p_content text[], p_price bigint[], p_country text[],
    p_due timestamptz[]
) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    v_organization uuid[] := array_fill(p_organization, ARRAY[cardinality(p_id)]);
    v_number uuid[] := array_fill(p_number, ARRAY[cardinality(p_id)]);
    v_address text[] := CASE WHEN p_billed THEN p_recipient
                             ELSE ARRAY(SELECT 'test:' || one FROM unnest(p_recipient) WITH ORDINALITY AS item (one, n)
                                         ORDER BY n) END;
    v_left bigint;
    v_thread uuid[];
    v_price bigint[];
    v_sum bigint;
BEGIN
    v_thread := whatsapp_find_conversations(v_organization, v_number, v_address);
    IF array_position(v_thread, NULL) IS NOT NULL THEN
        PERFORM FROM wallets WHERE organization_id = p_organization FOR UPDATE;
        v_thread := whatsapp_open_conversations(p_at, v_organization, v_number, v_address, p_conversation);
    END IF;

    -- LIMIT keeps the planner from turning this look-up into another join, even in a plan made while the table was
    -- empty.
    SELECT array_agg(CASE WHEN NOT p_billed OR thread.free_until > greatest(item.due, now()) THEN 0
                          ELSE item.price END ORDER BY n)
      INTO v_price
      FROM unnest(v_thread, p_price, p_due) WITH ORDINALITY AS item (thread, price, due, n)
      LEFT JOIN LATERAL (
           SELECT free_until FROM whatsapp_conversations
            WHERE organization_id = p_organization AND id = item.thread LIMIT 1) thread ON true;

    INSERT INTO whatsapp_messages (organization_id, id, direction, type, mode, status, number_id, conversation_id,
                                   recipient, template_id, template_name, template_language, billing_category, content,
                                   campaign_id, request_id, accepted_at, deadline_at, charge, reserved, country)
    SELECT p_organization, id, 'outbound', 'template', CASE WHEN p_billed THEN 'live' ELSE 'test' END, 'accepted',
           p_number, thread, recipient, p_template, p_name, p_language, p_category, content, p_campaign, p_request_id, p_at,
           coalesce(due, p_at) + p_life, CASE WHEN p_billed THEN 'reserved' ELSE 'none' END, price, country
      FROM unnest(p_id, v_thread, p_recipient, p_content, v_price, p_country, p_due)
           AS item (id, thread, recipient, content, price, country, due);

    -- Live messages wait in the line of their number; test messages go straight to the single line of test keys.
    INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
    SELECT 'whatsapp', CASE WHEN p_billed THEN p_number ELSE '00000000-0000-0000-0000-000000000001'::uuid END, p_lane,
           p_organization, greatest(due, p_at), id
      FROM unnest(p_id, p_due) AS item (id, due);

    INSERT INTO traffic_deltas (organization_id, batch, n, hour, channel, mode, country, sender, supplier_id, status,
                                count, segments, campaign_id)
    SELECT p_organization, (array_agg(id))[1], 0, date_trunc('hour', p_at, 'UTC'), 'whatsapp',
           CASE WHEN p_billed THEN 'live' ELSE 'test' END, country, p_number::text,
           '00000000-0000-0000-0000-000000000000', 'accepted', count(*), 0, p_campaign
      FROM unnest(p_id, p_country) AS item (id, country) GROUP BY country;

    SELECT coalesce(sum(price), 0) INTO v_sum FROM unnest(v_price) AS item (price);
    IF v_sum = 0 THEN
        SELECT available INTO v_left FROM wallets WHERE organization_id = p_organization AND currency = p_currency;
    END IF;
    IF NOT p_billed THEN
        RETURN coalesce(v_left, 0);
    END IF;
    -- Every live message has a reservation, even a free one: all are charged in the same way.
    INSERT INTO wallet_movements (organization_id, id, movement, message_id, available, reserved, consumed,
                                  created_at)
    SELECT p_organization, id, 'reserve', id, -price, price, 0, p_at FROM unnest(p_id, v_price) AS item (id, price);
    IF v_sum > 0 THEN
        UPDATE wallets SET available = available - v_sum, reserved = reserved + v_sum, updated_at = p_at
         WHERE organization_id = p_organization AND currency = p_currency AND available >= v_sum
        RETURNING available INTO v_left;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the wallet does not cover this' USING ERRCODE = 'HG001';
        END IF;
    END IF;
    RETURN coalesce(v_left, 0);
EXCEPTION WHEN SQLSTATE 'HG001' THEN
    RETURN NULL;
END $$;
