-- names_of_person: the names of one person in an organization: the key of the given one first, then those linked to it.
--
-- It is inlined into the calling statement, so that each look-up uses a whole key. LIMIT keeps it that way, even in a
-- plan made while a table was empty.
CREATE OR REPLACE FUNCTION names_of_person(p_organization uuid, p_address text) RETURNS TABLE (name text)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT names.name
      FROM (SELECT person_of(p_address) AS name OFFSET 0) own  -- computed once; without OFFSET, for each use of it
      CROSS JOIN LATERAL (
           SELECT own.name
           UNION ALL
           SELECT linked.name
             FROM (SELECT known.person FROM person_names known
                    WHERE known.organization_id = p_organization AND known.name = own.name LIMIT 1) mine
             CROSS JOIN LATERAL (
                  SELECT others.name FROM person_names others
                   WHERE others.organization_id = p_organization AND others.person = mine.person
                     AND others.name <> own.name
                   LIMIT 100) linked
           ) names
$$;

-- opted_out_since: since when a recipient's person has been opted out, under any name; no row: they are not.
CREATE OR REPLACE FUNCTION opted_out_since(p_organization uuid, p_address text) RETURNS TABLE (since timestamptz)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT said.since
      FROM names_of_person(p_organization, p_address) names
      CROSS JOIN LATERAL (
           SELECT opt_outs.since FROM opt_outs
            WHERE opt_outs.organization_id = p_organization AND opt_outs.person = names.name LIMIT 1) said
     LIMIT 1
$$;

-- spellings_of: the spellings of a number in which it may be a contact, given its key. As `phones.spellings`, without
-- the national 0; a user id is its own.
CREATE OR REPLACE FUNCTION spellings_of(p_person text) RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN left(p_person, 3) IN ('+55', '+52', '+54', '+22') THEN ARRAY(
           SELECT one FROM unnest(ARRAY[p_person,
                  CASE left(p_person, 3)
                  WHEN '+55' THEN left(p_person, 5) || '9' || substr(p_person, 6)
                  WHEN '+52' THEN '+521' || substr(p_person, 4)
                  WHEN '+54' THEN '+549' || substr(p_person, 4)
                  ELSE left(p_person, 4) || substr(p_person, 7) END]) AS item (one)
            WHERE person_of(one) = p_person)
           ELSE ARRAY[p_person] END
$$;

-- link_strangers: link pairs of names that belong to nobody yet, each pair to one new person; returns the positions of
-- the pairs that it linked. In the others, a name was linked by somebody else in the meantime.
--
-- Each name occurs once. p_turn: the organizations, in order, whose turn the transaction takes first (`TURN` in
-- people.py): nobody else links their people until it ends, so the names that are unknown then are still unknown when
-- they are inserted.
CREATE OR REPLACE FUNCTION link_strangers(
    p_turn text[], p_organization uuid[], p_one text[], p_other text[], p_person uuid[]
) RETURNS int[] LANGUAGE plpgsql AS $$
DECLARE
    v_linked int[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('people ' || id, 0)) FROM unnest(p_turn) AS turn (id);
    WITH strange AS MATERIALIZED (
        SELECT n FROM generate_series(1, cardinality(p_one)) AS n
         WHERE NOT EXISTS (SELECT FROM person_names WHERE organization_id = p_organization[n] AND name = p_one[n])
           AND NOT EXISTS (SELECT FROM person_names WHERE organization_id = p_organization[n] AND name = p_other[n])
    ), named AS (
        INSERT INTO person_names (organization_id, name, person)
        SELECT p_organization[n], pair.name, p_person[n]
          FROM strange CROSS JOIN LATERAL (VALUES (p_one[n]), (p_other[n])) AS pair (name)
    )
    SELECT array_agg(n) INTO v_linked FROM strange;
    RETURN coalesce(v_linked, '{}');
END $$;
