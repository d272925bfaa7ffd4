-- Histograms are arrays of counts, added element by element; a shorter one is padded with zeros.
CREATE OR REPLACE FUNCTION histogram_add(p_one bigint[], p_other bigint[]) RETURNS bigint[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN p_other = '{}' THEN p_one WHEN p_one = '{}' THEN p_other
           ELSE ARRAY(SELECT coalesce(one, 0) + coalesce(other, 0)
                        FROM unnest(p_one, p_other) WITH ORDINALITY AS item (one, other, n) ORDER BY n) END
$$;
CREATE OR REPLACE AGGREGATE histogram_sum(bigint[]) (
    sfunc = histogram_add, stype = bigint[], initcond = '{}', parallel = safe, combinefunc = histogram_add);
