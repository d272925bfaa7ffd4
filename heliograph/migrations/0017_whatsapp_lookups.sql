-- A row is looked up by (organization_id, id), and on a table that is still empty the planner thinks nothing of going by
-- an index that begins with the organization and ends with the id: it then reads all of the organization's entries, and
-- the plan is kept when there are millions. The predicate is always true, but only a search by the column in the middle
-- implies it, so nothing else can go that way.
DROP INDEX whatsapp_messages_by_recipient;
CREATE INDEX whatsapp_messages_by_recipient ON whatsapp_messages (organization_id, recipient, id)
    WHERE recipient IS NOT NULL;
DROP INDEX whatsapp_conversations_by_recipient;
CREATE INDEX whatsapp_conversations_by_recipient ON whatsapp_conversations (organization_id, recipient, id)
    WHERE recipient IS NOT NULL;
DROP INDEX campaigns_by_channel;
CREATE INDEX campaigns_by_channel ON campaigns (organization_id, channel, id) WHERE channel IS NOT NULL;
