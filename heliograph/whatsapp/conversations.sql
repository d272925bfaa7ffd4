-- whatsapp_conversations_1: the conversations of pairs of number and user, made where there are none.
--
-- A user is looked up by an alias: the number's digits, or a user id. The answer has a conversation for each asked
-- pair, in order; p_id are the ids that new ones get. Runs in the caller's transaction, after what it locks of wallets:
-- who makes a conversation waits for one who is making the same, so wallets always come first.
CREATE OR REPLACE FUNCTION whatsapp_conversations_1(
    p_at timestamptz, p_organization uuid[], p_number uuid[], p_alias text[], p_recipient text[], p_id uuid[]
) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_found uuid[] := whatsapp_known_conversations_1(p_organization, p_number, p_alias);
BEGIN
    IF array_position(v_found, NULL) IS NULL THEN
        RETURN v_found;
    END IF;

    -- In one order, so that two who meet the same users wait for each other in no circle.
    WITH wanted AS MATERIALIZED (
        SELECT DISTINCT ON (organization, number, alias) organization, number, alias, recipient, id
          FROM unnest(v_found, p_organization, p_number, p_alias, p_recipient, p_id) WITH ORDINALITY
               AS item (known, organization, number, alias, recipient, id, n)
         WHERE known IS NULL
         ORDER BY organization, number, alias, n
    ), mine AS (
        INSERT INTO whatsapp_aliases (organization_id, number_id, alias, conversation_id)
        SELECT organization, number, alias, id FROM wanted ORDER BY organization, number, alias
            ON CONFLICT DO NOTHING
        RETURNING conversation_id
    )
    INSERT INTO whatsapp_conversations (organization_id, id, number_id, recipient, created_at)
    SELECT organization, id, number, recipient, p_at FROM wanted WHERE id IN (SELECT conversation_id FROM mine);

    -- Again, with what others made at the same time: they are committed now.
    RETURN whatsapp_known_conversations_1(p_organization, p_number, p_alias);
END $$;

-- whatsapp_known_conversations_1: those that exist, in order; NULL where there is none.
CREATE OR REPLACE FUNCTION whatsapp_known_conversations_1(p_organization uuid[], p_number uuid[], p_alias text[])
RETURNS uuid[] LANGUAGE sql VOLATILE AS $$
    SELECT array_agg(known.conversation_id ORDER BY n)
      FROM unnest(p_organization, p_number, p_alias) WITH ORDINALITY AS item (organization, number, alias, n)
      LEFT JOIN LATERAL (
           SELECT conversation_id FROM whatsapp_aliases
            WHERE organization_id = item.organization AND number_id = item.number AND whatsapp_aliases.alias = item.alias
            LIMIT 1) known ON true
$$;
