-- count_requests: take units of rate windows, each of one organization, key and bucket, and return the windows' rows.
--
-- Rows are locked in the order of their keys, so that two processes never wait for each other in a circle: ask for each
-- window once, and take no other lock of rows before these but an organization's turn. Minutes are the database's. A
-- process whose statement began before the minute turned must not turn a newer window back: it adds to that one.
CREATE OR REPLACE FUNCTION count_requests(p_organization uuid[], p_key uuid[], p_bucket text[], p_units int[])
RETURNS SETOF rate_windows LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    INSERT INTO rate_windows AS known (organization_id, key_id, bucket, window_start, taken)
    SELECT organization, key, kind, date_trunc('minute', now()), units
      FROM unnest(p_organization, p_key, p_bucket, p_units) AS asked (organization, key, kind, units)
     ORDER BY organization, key, kind
        ON CONFLICT (organization_id, key_id, bucket) DO UPDATE
       SET taken = CASE WHEN known.window_start >= excluded.window_start THEN known.taken ELSE 0 END + excluded.taken,
           window_start = greatest(known.window_start, excluded.window_start)
    RETURNING known.*;
END $$;
