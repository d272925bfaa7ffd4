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
