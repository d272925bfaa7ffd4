-- What merging two conversations looks for. The predicates are always true where they are asked for, and keep these
-- indexes from seeming to answer anything else: see 0017.
CREATE INDEX whatsapp_aliases_by_alias ON whatsapp_aliases (organization_id, alias) WHERE alias IS NOT NULL;
CREATE INDEX whatsapp_conversations_merged ON whatsapp_conversations (organization_id, merged_into)
    WHERE merged_into IS NOT NULL;
COMMENT ON TABLE whatsapp_aliases IS 'tenant: by which name a user''s conversation with a number is found; person_names has the user''s others';
