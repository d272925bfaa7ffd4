-- count_requests: take units of rate windows, each of one organization, key and bucket, and return the windows' rows.
--
-- Rows are locked in the order of their keys, so that two processes cannot deadlock: name each window once, and lock no
-- other rows before these except an organization's balance or wallet. Minutes are the database's. A process whose
-- statement began in the previous minute must not reset a newer window: it adds to that one. A window further ahead was
-- opened before the database's clock was set back, and would otherwise last until that time comes again.
CREATE OR REPLACE FUNCTION count_requests(p_organization uuid[], p_key uuid[], p_bucket text[], p_units int[])
RETURNS SETOF rate_windows LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    INSERT INTO rate_windows AS known (organization_id, key_id, bucket, window_start, taken)
    SELECT organization, key, kind, date_trunc('minute', now()), units
      FROM unnest(p_organization, p_key, p_bucket, p_units) AS asked (organization, key, kind, units)
     ORDER BY organization, key, kind
        ON CONFLICT (organization_id, key_id, bucket) DO UPDATE
       SET taken = CASE WHEN known.window_start - excluded.window_start BETWEEN '0' AND '1 minute'
                        THEN known.taken ELSE 0 END + excluded.taken,
           window_start = CASE WHEN known.window_start - excluded.window_start BETWEEN '0' AND '1 minute'
                               THEN known.window_start ELSE excluded.window_start END
    RETURNING known.*;
END $$;
