-- sms_accept_one: what `sms_accept` does with a batch of one, for a third of the cost: no arrays, no windows, no sorts.
--
-- It stores the usual case: allowed, with a new key or none, within quota and rate. Everything else is passed to
-- `sms_accept`, so that the rules exist only there; locks and their order are the same. Only the rate window is counted
-- here, and requests over its limit are refused here.
CREATE OR REPLACE FUNCTION sms_accept_one(
    p_at timestamptz, p_kept interval,
    p_organization uuid, p_id uuid, p_eligible boolean, p_billed boolean, p_key uuid, p_request bytea,
    p_recipient text, p_country text, p_sender text, p_sender_id uuid, p_reference text, p_campaign uuid,
    p_encoding text, p_segments smallint, p_guarantee text, p_request_id text, p_life interval,
    p_due timestamptz, p_lane smallint, p_text text,
    p_bucket text, p_rate_key uuid, p_limit int, p_key_id uuid, p_person uuid, p_class text,
    p_price bigint, p_price_currency text, p_price_due text, p_defaulted boolean,
    OUT remaining bigint, OUT used int, OUT window_start timestamptz, OUT at timestamptz,
    OUT verdict text, OUT since timestamptz, OUT message uuid, OUT reference text
) LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    v_mode text := CASE WHEN p_billed THEN 'live' ELSE 'test' END;
    v_today date := (p_at AT TIME ZONE 'UTC')::date;
    -- UTC days on which keys that are still valid were created: see `sms_accept`.
    v_first date := ((p_at - p_kept) AT TIME ZONE 'UTC')::date;
    v_last date := ((p_at + interval '6 hours') AT TIME ZONE 'UTC')::date;
    v_opted_out boolean;
    v_unusual boolean := true;
BEGIN
    -- 1. Rate. The window of the current minute is updated directly, others in `count_requests`.
    IF p_rate_key IS NOT NULL THEN
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

    -- 2. Lock the organization's balance, and debit it, as in the usual case: one UPDATE costs less than a lock and an
    -- UPDATE. Daily limits, which few have, are left to `sms_accept`.
    IF NOT p_billed THEN
        SELECT quotas.total - quotas.used INTO remaining FROM quotas WHERE organization_id = p_organization FOR UPDATE;
    ELSIF p_eligible THEN
        UPDATE quotas SET used = quotas.used + 1
         WHERE organization_id = p_organization AND quotas.used < quotas.total AND NOT quotas.is_limited
        RETURNING quotas.total - quotas.used INTO remaining;
    END IF;

    -- 3. Is this the usual case? (An expired key may still conflict.)
    IF p_eligible AND remaining IS NOT NULL THEN
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
        IF p_billed AND remaining IS NOT NULL THEN
            UPDATE quotas SET used = quotas.used - 1 WHERE organization_id = p_organization;
        END IF;
        SELECT many.remaining[1], coalesce(many.verdict[1], 'stored'), many.since[1], many.message[1],
               many.reference[1], many.at
          INTO remaining, verdict, since, message, reference, at
          FROM sms_accept(p_at, p_kept, ARRAY[p_organization], ARRAY[p_id], ARRAY[p_eligible], ARRAY[p_billed],
                          ARRAY[p_key], ARRAY[p_request], ARRAY[p_recipient], ARRAY[p_country], ARRAY[p_sender],
                          ARRAY[p_sender_id], ARRAY[p_reference], ARRAY[p_campaign], ARRAY[p_encoding],
                          ARRAY[p_segments], ARRAY[p_guarantee], ARRAY[p_request_id], ARRAY[p_life], ARRAY[p_due],
                          ARRAY[p_lane], ARRAY[p_text], p_bucket,
                          -- Nothing more is taken from the window; its key is that of the message.
                          array_remove(ARRAY[CASE WHEN p_rate_key IS NOT NULL THEN p_organization END], NULL),
                          array_remove(ARRAY[p_rate_key], NULL),
                          array_remove(ARRAY[CASE WHEN p_rate_key IS NOT NULL THEN 0 END], NULL),
                          ARRAY[CASE WHEN p_rate_key IS NOT NULL THEN 1 END], ARRAY[0], ARRAY[NULL::int],
                          ARRAY[p_key_id], ARRAY[p_person], ARRAY[p_class], ARRAY[p_price],
                          ARRAY[p_price_currency], ARRAY[p_price_due], ARRAY[p_defaulted]) AS many;
        RETURN;
    END IF;

    -- 4. Store.
    WITH counted AS (
        INSERT INTO traffic_deltas (organization_id, batch, n, hour, channel, mode, country, sender, supplier_id, status,
                                    count, segments, campaign_id, key_id)
        VALUES (p_organization, p_id, 0, date_trunc('hour', p_at, 'UTC'), 'sms', v_mode, p_country, p_sender,
                '00000000-0000-0000-0000-000000000000', 'accepted', 1, p_segments, p_campaign, p_rate_key)
    ), queued AS (
        INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
        VALUES ('sms', CASE WHEN p_billed THEN '00000000-0000-0000-0000-000000000000'::uuid
                            ELSE '00000000-0000-0000-0000-000000000001'::uuid END,
                p_lane, p_organization, greatest(p_due, p_at), p_id)
    ), kept AS (
        INSERT INTO send_keys (organization_id, key_hash, made_on, request_hash, message_id, created_at)
        SELECT p_organization, p_key, v_today, p_request, p_id, now() WHERE p_key IS NOT NULL
    )
    INSERT INTO messages (organization_id, id, mode, status, recipient, sender, sender_id, encoding, segments,
                          sender_defaulted, class, guarantee, country, body, client_reference, campaign_id, key_id,
                          person_id, request_id, balance_after, price, price_currency, price_due, accepted_at, send_at,
                          expires_at)
    VALUES (p_organization, p_id, v_mode, 'accepted', p_recipient, p_sender, p_sender_id, p_encoding, p_segments,
            p_defaulted, p_class, p_guarantee, p_country, p_text, p_reference, p_campaign, p_key_id, p_person,
            p_request_id, remaining, p_price, p_price_currency, p_price_due, p_at, p_due,
            greatest(p_due, p_at) + p_life);
    at := clock_timestamp();
END $$;
