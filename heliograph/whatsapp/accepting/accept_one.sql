-- whatsapp_accept_one: `whatsapp_accept` for a batch of one, without arrays, window functions and sorts.
--
-- It stores the usual case: allowed, with a new key or none, within rate, window and wallet. Everything else is passed
-- to `whatsapp_accept` before anything is counted, so that the rules exist only there; locks and their order are the
-- same: wallet, then rate window. Only requests over their limit are refused here as well.
CREATE OR REPLACE FUNCTION whatsapp_accept_one(
    p_at timestamptz, p_kept interval, p_margin float8,
    p_organization uuid, p_id uuid, p_eligible boolean, p_live boolean, p_key uuid, p_request bytea,
    p_recipient text, p_number uuid, p_conversation uuid, p_type text, p_template uuid, p_name text,
    p_language text, p_category text, p_reference text, p_campaign uuid, p_request_id text,
    p_deadline timestamptz, p_due timestamptz, p_lane smallint, p_content text, p_currency text,
    p_price bigint, p_country text,
    p_bucket text, p_rate_key uuid, p_limit int, p_key_id uuid, p_person uuid,
    OUT used int, OUT window_start timestamptz, OUT at timestamptz,
    OUT verdict text, OUT price bigint, OUT available bigint, OUT since timestamptz, OUT expires timestamptz,
    OUT message uuid, OUT reference text
) LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    v_mode text := CASE WHEN p_live THEN 'live' ELSE 'test' END;
    v_address text := CASE WHEN p_live THEN p_recipient ELSE 'test:' || p_recipient END;
    v_today date := (p_at AT TIME ZONE 'UTC')::date;
    -- UTC days on which keys that are still valid were created: see `whatsapp_accept`.
    v_first date := ((p_at - p_kept) AT TIME ZONE 'UTC')::date;
    v_last date := ((p_at + interval '6 hours') AT TIME ZONE 'UTC')::date;
    v_unusual boolean;
    v_opted_out boolean;
    v_wallet record;
    v_thread record;
    v_conversation uuid;
    v_cost bigint;
    v_rated boolean := p_rate_key IS NOT NULL;
BEGIN
    -- 1. Lock the organization.
    SELECT wallets.available, wallets.currency INTO v_wallet FROM wallets WHERE organization_id = p_organization
       FOR UPDATE;

    -- 2. Is this the usual case? (An expired key may still conflict.)
    SELECT c.id, c.expires_at, c.free_until INTO v_thread
      FROM whatsapp_conversation_of(p_organization, p_number, v_address) found
      CROSS JOIN LATERAL (
           SELECT id, expires_at, whatsapp_conversations.free_until FROM whatsapp_conversations
            WHERE organization_id = p_organization AND id = found.conversation_id LIMIT 1) c;
    v_conversation := v_thread.id;
    v_cost := CASE WHEN NOT p_live OR v_thread.free_until > greatest(p_due, now()) THEN 0 ELSE p_price END;
    v_unusual := NOT p_eligible OR v_wallet IS NULL
       OR (v_cost > 0 AND (v_wallet.currency IS DISTINCT FROM p_currency OR v_wallet.available < v_cost))
       OR (p_type = 'text' AND p_live
           AND NOT coalesce(v_thread.expires_at >= now() + make_interval(secs => p_margin), false));
    IF NOT v_unusual THEN
        SELECT EXISTS (SELECT FROM send_keys WHERE organization_id = p_organization AND key_hash = p_key
                          AND made_on BETWEEN v_first AND v_last),
               EXISTS (SELECT FROM opt_outs WHERE organization_id = p_organization)
          INTO v_unusual, v_opted_out;
        -- Many organizations have no opt-outs at all: for them, nothing is looked up by the recipient.
        IF v_opted_out AND NOT v_unusual THEN
            v_unusual := EXISTS (SELECT FROM opted_out_since(p_organization, p_recipient));
        END IF;
    END IF;
    IF v_unusual THEN
        SELECT many.used[1], many.window_start[1], many.at, coalesce(many.verdict[1], 'stored'), many.price[1],
               many.available[1], many.since[1], many.expires[1], many.message[1], many.reference[1]
          INTO used, window_start, at, verdict, price, available, since, expires, message, reference
          FROM whatsapp_accept(p_at, p_kept, p_margin, ARRAY[p_organization], ARRAY[p_id], ARRAY[p_eligible],
                               ARRAY[p_live], ARRAY[p_key], ARRAY[p_request], ARRAY[p_recipient], ARRAY[p_number],
                               ARRAY[p_conversation], ARRAY[p_type], ARRAY[p_template], ARRAY[p_name],
                               ARRAY[p_language], ARRAY[p_category], ARRAY[p_reference], ARRAY[p_campaign],
                               ARRAY[p_request_id], ARRAY[p_deadline], ARRAY[p_due], ARRAY[p_lane], ARRAY[p_content],
                               ARRAY[p_currency], ARRAY[p_price], ARRAY[p_country], p_bucket,
                               CASE WHEN v_rated THEN ARRAY[p_organization] ELSE '{}' END,
                               CASE WHEN v_rated THEN ARRAY[p_rate_key] ELSE '{}' END,
                               CASE WHEN v_rated THEN ARRAY[1] ELSE '{}' END,
                               ARRAY[CASE WHEN v_rated THEN 1 END], ARRAY[CASE WHEN v_rated THEN 1 END],
                               ARRAY[p_limit], ARRAY[p_key_id],
                               CASE WHEN p_person IS NOT NULL THEN ARRAY[p_person] END) AS many;
        RETURN;
    END IF;

    -- 3. Rate. The window of the current minute is updated directly, others in `count_requests`.
    IF v_rated THEN
        UPDATE rate_windows known SET taken = known.taken + 1
         WHERE known.organization_id = p_organization AND known.key_id = p_rate_key AND known.bucket = p_bucket
           AND known.window_start = date_trunc('minute', p_at)
        RETURNING known.taken, known.window_start INTO used, window_start;
        IF NOT FOUND THEN
            SELECT counted.taken, counted.window_start INTO used, window_start
              FROM count_requests(ARRAY[p_organization], ARRAY[p_rate_key], ARRAY[p_bucket], ARRAY[1]) AS counted;
        END IF;
        IF used > p_limit THEN
            verdict := 'limited';
            at := clock_timestamp();
            RETURN;
        END IF;
    END IF;

    -- 4. Store.
    IF v_conversation IS NULL THEN
        v_conversation := (whatsapp_open_conversations(p_at, ARRAY[p_organization], ARRAY[p_number],
                                                       ARRAY[v_address], ARRAY[p_conversation]))[1];
    END IF;
    WITH counted AS (
        INSERT INTO traffic_deltas (organization_id, batch, n, hour, channel, mode, country, sender, supplier_id, status,
                                    count, segments, campaign_id, key_id)
        VALUES (p_organization, p_id, 0, date_trunc('hour', p_at, 'UTC'), 'whatsapp', v_mode, p_country, p_number::text,
                '00000000-0000-0000-0000-000000000000', 'accepted', 1, 0, p_campaign, p_rate_key)
    ), queued AS (
        INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
        VALUES ('whatsapp', CASE WHEN p_live THEN p_number ELSE '00000000-0000-0000-0000-000000000001'::uuid END,
                p_lane, p_organization, greatest(p_due, p_at), p_id)
    ), booked AS (
        INSERT INTO wallet_movements (organization_id, id, movement, message_id, available, reserved, consumed,
                                      created_at)
        SELECT p_organization, p_id, 'reserve', p_id, -v_cost, v_cost, 0, p_at WHERE p_live
    ), debit AS (
        UPDATE wallets SET available = wallets.available - v_cost, reserved = wallets.reserved + v_cost,
                           updated_at = p_at
         WHERE organization_id = p_organization AND v_cost > 0
    ), kept AS (
        INSERT INTO send_keys (organization_id, key_hash, made_on, request_hash, message_id, created_at)
        SELECT p_organization, p_key, v_today, p_request, p_id, now() WHERE p_key IS NOT NULL
    )
    INSERT INTO whatsapp_messages (organization_id, id, direction, type, mode, status, number_id, conversation_id,
                                   recipient, template_id, template_name, template_language, billing_category,
                                   content, client_reference, campaign_id, key_id, person_id, request_id,
                                   accepted_at, deadline_at, charge, reserved, country)
    VALUES (p_organization, p_id, 'outbound', p_type, v_mode, 'accepted', p_number, v_conversation, p_recipient,
            p_template, p_name, p_language, p_category, p_content, p_reference, p_campaign, p_key_id, p_person,
            p_request_id, p_at, p_deadline, CASE WHEN p_live THEN 'reserved' ELSE 'none' END, v_cost, p_country);
    at := clock_timestamp();
END $$;
