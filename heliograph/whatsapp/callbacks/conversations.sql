-- Conversations: look-up, creation, merging. A user is identified by any name: a number in E.164, or a user id.
-- whatsapp_aliases has one row for each conversation, under one of the person's names; `names_of_person` finds it by
-- the others. Test keys have their own conversations, under `test:` and the number.

-- whatsapp_conversation_of: the conversation between one of our numbers and a user; no row if there is none. Inlined.
CREATE OR REPLACE FUNCTION whatsapp_conversation_of(p_organization uuid, p_number uuid, p_address text)
RETURNS TABLE (conversation_id uuid) LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT found.conversation_id
      FROM names_of_person(p_organization, p_address) names
      CROSS JOIN LATERAL (
           SELECT known.conversation_id FROM whatsapp_aliases known
            WHERE known.organization_id = p_organization AND known.number_id = p_number
              AND known.alias = ltrim(names.name, '+') LIMIT 1) found
     LIMIT 1
$$;

-- whatsapp_find_conversations: existing conversations, in order; NULL where there is none.
CREATE OR REPLACE FUNCTION whatsapp_find_conversations(p_organization uuid[], p_number uuid[], p_address text[])
RETURNS uuid[] LANGUAGE sql VOLATILE AS $$
    SELECT array_agg(known.conversation_id ORDER BY n)
      FROM unnest(p_organization, p_number, p_address) WITH ORDINALITY AS item (organization, number, address, n)
      LEFT JOIN LATERAL (SELECT conversation_id
                           FROM whatsapp_conversation_of(item.organization, item.number, item.address)) known ON true
$$;

-- whatsapp_open_conversations: conversations for pairs of number and user that were found to have none.
--
-- Returns a conversation for each pair, in order: the new one with its id from p_id, or one that has been created since.
-- Runs in the caller's transaction, after it has locked wallets: a transaction that creates a conversation waits for
-- others that are creating the same one, so wallets always come first.
CREATE OR REPLACE FUNCTION whatsapp_open_conversations(
    p_at timestamptz, p_organization uuid[], p_number uuid[], p_address text[], p_id uuid[]
) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_found uuid[];
BEGIN
    -- The smallest of a person's names represents all of them, so that two transactions that know a user by different
    -- names create one conversation. In a fixed order, so that they cannot deadlock. Parentheses around IN keep it from
    -- becoming a join, which would compare each id with all others.
    WITH named AS MATERIALIZED (
        SELECT item.*, person.alias, person.known
          FROM unnest(p_organization, p_number, p_address, p_id) WITH ORDINALITY
               AS item (organization, number, address, id, n)
         CROSS JOIN LATERAL (
               SELECT min(ltrim(names.name, '+')) AS alias,
                      (array_agg(mine.conversation_id) FILTER (WHERE mine.conversation_id IS NOT NULL))[1] AS known
                 FROM names_of_person(item.organization, item.address) names
                 LEFT JOIN LATERAL (
                      SELECT conversation_id FROM whatsapp_aliases
                       WHERE organization_id = item.organization AND number_id = item.number
                         AND alias = ltrim(names.name, '+') LIMIT 1) mine ON true) person
    ), wanted AS MATERIALIZED (
        SELECT DISTINCT ON (organization, number, alias) organization, number, alias, address, id
          FROM named WHERE known IS NULL ORDER BY organization, number, alias, n
    ), mine AS (
        INSERT INTO whatsapp_aliases (organization_id, number_id, alias, conversation_id)
        SELECT organization, number, alias, id FROM wanted ORDER BY organization, number, alias
            ON CONFLICT DO NOTHING
        RETURNING conversation_id
    ), opened AS (
        INSERT INTO whatsapp_conversations (organization_id, id, number_id, recipient, mode, created_at)
        SELECT organization, id, number, CASE WHEN address LIKE 'test:%' THEN substr(address, 6) ELSE address END,
               CASE WHEN address LIKE 'test:%' THEN 'test' ELSE 'live' END, p_at
          FROM wanted WHERE (id IN (SELECT conversation_id FROM mine)) IS TRUE
    )
    SELECT array_agg(CASE WHEN id IN (SELECT conversation_id FROM mine) THEN id ELSE known END ORDER BY n)
      INTO v_found FROM named;
    IF array_position(v_found, NULL) IS NULL THEN
        RETURN v_found;
    END IF;

    -- Some pairs are the same, or were created concurrently: those are committed by now.
    RETURN whatsapp_find_conversations(p_organization, p_number, p_address);
END $$;

-- whatsapp_ensure_conversations: the conversations of pairs of number and user, created where there are none. The same
-- rules apply as for whatsapp_open_conversations.
CREATE OR REPLACE FUNCTION whatsapp_ensure_conversations(
    p_at timestamptz, p_organization uuid[], p_number uuid[], p_address text[], p_id uuid[]
) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_found uuid[] := whatsapp_find_conversations(p_organization, p_number, p_address);
BEGIN
    IF array_position(v_found, NULL) IS NULL THEN
        RETURN v_found;
    END IF;
    RETURN whatsapp_open_conversations(p_at, p_organization, p_number, p_address, p_id);
END $$;

-- whatsapp_merge_conversations: merge the conversations that a person has with one of our numbers, for each number.
--
-- The oldest one stays, with the window that ends last, since the person opened both. The others remain as pointers to
-- it: a message that is being accepted right now may still refer to one.
CREATE OR REPLACE FUNCTION whatsapp_merge_conversations(p_organization uuid[], p_address text[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_pair record;
    v_found record;
    v_kept uuid;
BEGIN
    -- Most people have one conversation with a number, under all their names: they are skipped in one statement.
    FOR v_pair IN
        SELECT DISTINCT organization, address FROM unnest(p_organization, p_address) AS pair (organization, address)
         CROSS JOIN LATERAL (
               SELECT a.number_id
                 FROM names_of_person(pair.organization, pair.address) names
                 JOIN whatsapp_aliases a ON a.organization_id = pair.organization AND a.alias = ltrim(names.name, '+')
                GROUP BY a.number_id HAVING count(DISTINCT a.conversation_id) > 1 LIMIT 1) several
         ORDER BY organization, address
    LOOP
        FOR v_found IN
            SELECT a.number_id, array_agg(DISTINCT a.conversation_id) AS ids
              FROM names_of_person(v_pair.organization, v_pair.address) names
              JOIN whatsapp_aliases a ON a.organization_id = v_pair.organization AND a.alias = ltrim(names.name, '+')
             GROUP BY a.number_id HAVING count(DISTINCT a.conversation_id) > 1
             ORDER BY a.number_id
        LOOP
            PERFORM FROM whatsapp_conversations
              WHERE organization_id = v_pair.organization AND id = ANY (v_found.ids) ORDER BY id FOR UPDATE;
            SELECT id INTO v_kept FROM whatsapp_conversations
              WHERE organization_id = v_pair.organization AND id = ANY (v_found.ids) ORDER BY id LIMIT 1;
            CONTINUE WHEN v_kept IS NULL;

            UPDATE whatsapp_conversations kept
               SET opened_at = window_.opened_at, closed_at = window_.closed_at, expires_at = window_.expires_at,
                   referred_at = all_.referred_at, free_until = all_.free_until,
                   last_inbound_at = all_.last_inbound_at, last_outbound_at = all_.last_outbound_at,
                   pair_paid_until = all_.pair_paid_until,
                   recipient = who.recipient, user_id = named.user_id
              FROM (SELECT opened_at, closed_at, expires_at FROM whatsapp_conversations
                     WHERE organization_id = v_pair.organization AND id = ANY (v_found.ids)
                     ORDER BY expires_at DESC NULLS LAST, id LIMIT 1) window_,
                   (SELECT max(referred_at) AS referred_at, max(free_until) AS free_until,
                           max(last_inbound_at) AS last_inbound_at, max(last_outbound_at) AS last_outbound_at,
                           max(pair_paid_until) AS pair_paid_until
                      FROM whatsapp_conversations
                     WHERE organization_id = v_pair.organization AND id = ANY (v_found.ids)) all_,
                   (SELECT recipient FROM whatsapp_conversations
                     WHERE organization_id = v_pair.organization AND id = ANY (v_found.ids)
                     ORDER BY recipient LIKE '+%' DESC, last_inbound_at DESC NULLS LAST, id LIMIT 1) who,
                   (SELECT user_id FROM whatsapp_conversations
                     WHERE organization_id = v_pair.organization AND id = ANY (v_found.ids)
                     ORDER BY user_id IS NULL, last_inbound_at DESC NULLS LAST, id LIMIT 1) named
             WHERE kept.organization_id = v_pair.organization AND kept.id = v_kept;
            UPDATE whatsapp_conversations SET merged_into = v_kept
              WHERE organization_id = v_pair.organization AND id = ANY (v_found.ids) AND id <> v_kept;
            UPDATE whatsapp_conversations SET merged_into = v_kept
              WHERE organization_id = v_pair.organization AND merged_into = ANY (v_found.ids) AND merged_into <> v_kept;
            UPDATE whatsapp_aliases SET conversation_id = v_kept
              WHERE organization_id = v_pair.organization AND number_id = v_found.number_id
                AND conversation_id = ANY (v_found.ids) AND conversation_id <> v_kept
                AND alias = ANY (ARRAY(SELECT ltrim(name, '+')
                                         FROM names_of_person(v_pair.organization, v_pair.address)));
        END LOOP;
    END LOOP;
END $$;

-- whatsapp_hand_on_conversations: a number is another person's from now on; the conversations that are found by it stay
-- with the user who moved to p_to. Runs after the names were separated.
CREATE OR REPLACE FUNCTION whatsapp_hand_on_conversations(p_organization uuid, p_number text, p_to text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_old text := ltrim(person_of(p_number), '+');
    v_new text := ltrim(person_of(p_to), '+');
BEGIN
    -- The new name finds a conversation with each of our numbers by at most one alias: where it has one, the old alias
    -- is superfluous.
    DELETE FROM whatsapp_aliases old
     WHERE old.organization_id = p_organization AND old.alias = v_old
       AND EXISTS (SELECT FROM whatsapp_conversation_of(p_organization, old.number_id, p_to));
    UPDATE whatsapp_aliases SET alias = v_new WHERE organization_id = p_organization AND alias = v_old;
END $$;
